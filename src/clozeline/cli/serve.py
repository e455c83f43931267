"""`clozeline serve`: exported models behind an HTTP port."""

import json
import logging
import os
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from clozeline.cli import ask, tables
from clozeline.serving.admission import MAX_WAITING_TOKENS, Admission
from clozeline.serving.errors import DEFAULT_TIMEOUT_SECONDS, KEYS_VARIABLE
from clozeline.system.errors import ParamsError
from clozeline.system.machine import available_cores
from clozeline.system.workspace import quiet_tools

if TYPE_CHECKING:
    from clozeline.registry.sources import ModelSource
    from clozeline.serving.access import AllowedHosts, ApiKeys
    from clozeline.serving.models import Catalogue


QueueTokensOption = Annotated[
    int,
    typer.Option(
        min=1,
        help="Maximum number of waiting tokens; a request that exceeds them gets a 429 with a time to retry. The texts "
        "of a request with more than half of them are spread over its time limit, so that others run in between.",
    ),
]
KeysFileOption = Annotated[
    Path | None, typer.Option(help=f"Require one of the API keys in this file, one per line; or set {KEYS_VARIABLE}.")
]
HostsOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Also accept this Host name, for example behind a proxy or in a cluster (repeatable; `*`: any). "
        "Always accepted: localhost and --host; any IP address too, unless --host is the loopback.",
        show_default=False,
    ),
]
_LOG = logging.getLogger(__name__)


def serve(
    models: Annotated[list[str] | None, typer.Argument(metavar="[NAME=]MODEL", show_default=False)] = None,
    host: str = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8000,
    threads: Annotated[int | None, typer.Option(min=1)] = None,
    precision: ask.PrecisionOption = None,
    queue_tokens: QueueTokensOption = MAX_WAITING_TOKENS,
    timeout: Annotated[float, typer.Option(min=0.001)] = DEFAULT_TIMEOUT_SECONDS,
    watch: Annotated[float, typer.Option(min=0)] = 10.0,
    cache_megabytes: Annotated[int, typer.Option(min=0)] = 0,
    api_keys_file: KeysFileOption = None,
    allowed_host: HostsOption = None,
    require_signature: Annotated[Path | None, typer.Option(metavar="FILE", show_default=False)] = None,
    fleet: Annotated[bool, typer.Option("--fleet")] = False,
    traces: Annotated[bool, typer.Option("--traces")] = False,
) -> None:
    """Serve models over HTTP; without --host, to this machine only.

    Routes: /fill-mask, /embed, /zero-shot (encoders), /complete (causal models), /classify, /tag, /answer, /models,
    /metrics, /health/live, /health/ready; and those of other servers, such as OpenAI's (/v1). /docs documents all.

    Examples:

    - `clozeline serve`
    - `clozeline serve dist/encoder dist/library --port 9000`
    - `clozeline serve models:/clozeline-encoder@champion next=models:/clozeline-encoder@candidate`
    - `clozeline serve --host 0.0.0.0 --fleet`

    Then: `curl -s 127.0.0.1:8000/embed -H 'content-type: application/json' -d '{"inputs": "Sort a list."}'`

    Ctrl+C or SIGTERM stops the server once it has answered every accepted request. A supervisor has to wait 70 s plus
    --timeout (or the longest x-timeout-ms of a client, at most 600 s). A second Ctrl+C answers with 503; the exit code
    is 130.

    Args:
        models: Folders of dist/, or registry URIs (models:/NAME@ALIAS). Default: the champions, or else all of dist/.
        host: Address to listen on; 0.0.0.0 lets other machines in.
        port: Port to listen on; 0 takes a free one.
        threads: Micro-batches that run at once, on one core each. [default: every core]
        timeout: Seconds that a request may take, unless it sets a limit of its own.
        watch: Seconds between checks whether an alias has moved; 0: no checks.
        cache_megabytes: Megabytes of answers to keep for repeated request bodies.
        require_signature: Serve only models that someone in this file of allowed signers signed (`clozeline sign`).
        fleet: Change to a new champion when the other servers with --fleet do: no client gets an old version again.
        traces: Send a span per request to the OpenTelemetry collector at OTEL_EXPORTER_OTLP_ENDPOINT.
    """
    from clozeline.serving.access import first_key_in_shell
    from clozeline.serving.models import Capacity
    from clozeline.serving.server import ServerSettings, run

    _set_up_log(is_in_fleet=fleet)
    sources = _sources(models, require_signature)
    sources = _in_fleet(sources, watch) if fleet else sources
    keys, hosts = _access(host, api_keys_file, allowed_host or [])
    admission, cache_bytes = Admission(max_waiting_tokens=queue_tokens), cache_megabytes * 2**20
    capacity = Capacity(threads or available_cores(), admission, timeout_seconds=timeout, cache_bytes=cache_bytes)
    key = first_key_in_shell(api_keys_file) if keys.digests else None
    settings = ServerSettings(host, port, capacity, precision, keys, hosts, watch, traces)
    run(sources, settings, partial(announce, key=key))


def _access(host: str, keys_file: Path | None, more_hosts: list[str]) -> "tuple[ApiKeys, AllowedHosts]":
    """Return the accepted keys and host names. Without keys, a server for other machines logs a warning."""
    from clozeline.serving.access import AllowedHosts, ApiKeys

    keys, hosts = ApiKeys.read(keys_file), AllowedHosts.of(host, more_hosts)
    if not keys.digests and hosts.by_address:
        _LOG.warning("Anyone who can reach %s can use the models: no API keys are set.", host)
    return keys, hosts


def _sources(models: list[str] | None, signers: Path | None) -> "list[ModelSource]":
    from clozeline.registry.signature import require_allowed_signers
    from clozeline.registry.sources import default_sources, parse_sources

    allowed_signers = require_allowed_signers(signers) if signers else None
    sources = parse_sources(models) if models else default_sources()
    return [replace(source, allowed_signers=allowed_signers) for source in sources]


def _in_fleet(sources: "list[ModelSource]", watch: float) -> "list[ModelSource]":
    """Return the sources with each champion as one that changes together with that of other servers.

    Raises:
        ParamsError: the served models cannot change together with those of other servers.
    """
    unfit = [one.place for one in sources if not one.is_champion and (one.is_alias or one.is_missing)]
    if unfit or watch == 0 or not any(source.is_champion for source in sources):
        given = "--watch 0" if watch == 0 else ", ".join(unfit or [source.place for source in sources])
        raise ParamsError(
            f"these models cannot change together with those of other servers: {given}",
            do="name champions (models:/NAME@champion) with a --watch above 0, or leave --fleet out",
        )
    return [replace(source, is_in_fleet=source.is_champion) for source in sources]


def announce(url: str, catalogue: "Catalogue", key: str | None = None) -> None:
    """Print what is served, where, and how to try it; `key` is the shell expression for a required API key."""
    from clozeline.serving.http.endpoint import DIALECTS
    from clozeline.serving.http.openapi import answered_examples
    from clozeline.serving.models import ANY

    rows = []
    for served in catalogue:
        identity, answered = served.identity, sorted(DIALECTS.asking(served), key=lambda one: one.ability is ANY)
        paths = " ".join(one.path for one in answered[:3])
        rows.append([escape(cell) for cell in (identity.name, paths, identity.version, identity.source)])
    tables.show([tables.table_of("", "model", "answers", "version", "from", rows=rows)], plain_if_piped=True)
    asked, able = next(
        (one, able) for one in DIALECTS.operations if one.ability and (able := catalogue.able(one.ability))
    )
    example = next(iter(answered_examples(asked, able).values()))
    body = json.dumps(example["value"])
    headers = "-H 'content-type: application/json'" + (f' -H "authorization: Bearer {key}"' if key else "")
    typer.echo(f"\n  URL   {url} (a page to try the models)\n  Docs  {url}/docs")
    typer.echo(f"  Try   curl -s {url}{asked.path} {headers} -d '{body}'\n")


def _set_up_log(*, is_in_fleet: bool) -> None:
    """Stamp each line with its time in UTC: unlike other verbs, a server's log is read afterwards.

    No tool sends telemetry or logs on its own: the watcher says once that the registry is away.
    """
    stamped = logging.Formatter("%(asctime)s.%(msecs)03dZ %(message)s", "%Y-%m-%dT%H:%M:%S")
    stamped.converter = time.gmtime
    for handler in logging.getLogger().handlers:
        handler.setFormatter(stamped)
    if is_in_fleet:  # a poll that fails is soon followed by the next one
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "15")
    quiet_tools()
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)  # it warns of each retry of an MLflow call
