"""compose.yaml is valid, and has exact versions, no root, no open port, no secret and no installation at start."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from clozeline.cli import serve
from clozeline.serving.http.bodies import MAX_TIMEOUT_MILLISECONDS
from clozeline.serving.limits import MAX_BODY_SECONDS
from clozeline.serving.uvicorn_adapter import WRITING_SECONDS
from tests.infra.stack.compose_file import ROOT, Compose

FILE = ROOT / "infra/compose.yaml"
TEXT = FILE.read_text(encoding="utf-8")
SERVICES = Compose.read().services
SERVERS = {"postgres", "store", "mlflow", "prefect", "worker", "serving"}
EXACT_VERSION = re.compile(r"[\w./-]+:v?\d+\.\d+[\w.-]*(@sha256:[0-9a-f]{64})?")
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
Service = dict[str, Any]
RULES: dict[str, Callable[[Service], object]] = {
    "has an image of an exact version": lambda it: EXACT_VERSION.fullmatch(it["image"]),
    "has the version of the project if it is built": lambda it: (
        "build" not in it or it["image"].endswith(f":{VERSION}")
    ),
    "runs as a user other than root": lambda it: str(it.get("user", "root")).split(":")[0] not in {"root", "0"},
    "cannot gain rights": lambda it: (it["cap_drop"], it["security_opt"]) == (["ALL"], ["no-new-privileges:true"]),
    "has a read-only root and telemetry off if it is built": lambda it: (
        "build" not in it or (it["read_only"], it["env_file"]) == (True, ["settings.env"])
    ),
    "is published on the loopback only": lambda it: all(port.startswith("127.0.0.1:") for port in it.get("ports", [])),
    "installs no package at its start": lambda it: (
        not re.search(r"\b(pip|apt|apk|uv|curl)\b", " ".join(it.get("command", [])))
    ),
    "waits until its dependencies are healthy or done": lambda it: all(
        how["condition"] == ("service_healthy" if needed in SERVERS else "service_completed_successfully")
        for needed, how in it.get("depends_on", {}).items()
    ),
    "mounts files that exist": lambda it: all(
        not volume.startswith(".") or (FILE.parent / volume.split(":")[0]).exists() for volume in it.get("volumes", [])
    ),
    "is built from files that exist": lambda it: (
        "build" not in it or (FILE.parent / it["build"]["context"] / it["build"]["dockerfile"]).is_file()
    ),
}


def test_every_service_follows_every_rule() -> None:
    assert [f"{name} {rule}" for name, it in SERVICES.items() for rule in RULES if not RULES[rule](it)] == []


def test_compose_yaml_follows_the_compose_specification(tmp_path: Path) -> None:
    def schema_problems(path: Path) -> str:
        command = [str(Path(sys.executable).with_name("check-jsonschema")), "--builtin-schema", "vendor.compose-spec"]
        done = subprocess.run([*command, str(path)], capture_output=True, text=True, check=False)
        return "" if done.returncode == 0 else done.stdout + done.stderr

    assert schema_problems(FILE) == ""
    broken = tmp_path / "compose.yaml"
    broken.write_text(TEXT.replace("retries:", "retrys:"), encoding="utf-8")
    assert "retrys" in schema_problems(broken)


def test_every_server_has_a_health_check_and_restarts_and_every_job_is_waited_for() -> None:
    """`up --wait` counts a container that has ended as failed, unless a service depends on its success. `up` does not
    start those of a profile.
    """
    assert {name for name, it in SERVICES.items() if it.get("restart") == "unless-stopped"} == SERVERS
    assert {name for name, it in SERVICES.items() if "healthcheck" in it} == SERVERS
    waited_for = {needed for it in SERVICES.values() for needed in it.get("depends_on", {})}
    assert {name for name, it in SERVICES.items() if name not in SERVERS and "profiles" not in it} <= waited_for


def test_serve_takes_the_options_of_its_service_which_cannot_reach_the_databases(compose: Compose) -> None:
    program, verb, *options = compose.command("serving")
    app = typer.Typer()
    app.command()(serve.serve)
    given = typer.main.get_command(app).make_context(verb, options).params
    assert (program, verb) == ("clozeline", "serve")
    assert given["host"] == "0.0.0.0"
    assert SERVICES["serving"]["ports"] == [f"127.0.0.1:{given['port']}:{given['port']}"]
    assert set(SERVICES["serving"]["networks"]).isdisjoint(SERVICES["postgres"]["networks"])


def test_serving_has_a_stop_timeout_that_covers_its_longest_request() -> None:
    longest_seconds = MAX_BODY_SECONDS + MAX_TIMEOUT_MILLISECONDS / 1000 + WRITING_SECONDS
    assert SERVICES["serving"]["stop_grace_period"] == f"{longest_seconds:.0f}s"


def test_secrets_come_from_the_env_file_and_compose_refuses_to_start_without_them(compose: Compose) -> None:
    required = set(re.findall(r"\$\{(\w+):\?\}", TEXT))
    optional = set(re.findall(r"\$\{(\w+):-", TEXT))
    assert required | optional == set(compose.secrets), "compose.yaml and .env.example name different variables"
    assert all(name.startswith("CLOZELINE_") for name in optional)
    assert re.findall(r"^\s+\w*(?:PASSWORD|SECRET|_KEY)\w*: (?!\$\{)(\S+)", TEXT, re.MULTILINE) == []
