"""Address of the cluster that spreads the work of a stage."""

import os
import re
import socket
from collections.abc import Mapping

from clozeline.system.errors import ParamsError, TransientError

VARIABLE = "CLOZELINE_CLUSTER"
# Environment variable with the URL of a store, where nodes have no folder in common.
STORE = "CLOZELINE_CLUSTER_STORE"
# The cluster of which this machine is a node.
AUTO = "auto"
_ADDRESS = re.compile(r"ray://(auto|[^/:\s]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5})/?")
_CONNECT_SECONDS = 5.0
# Variable that Ray reads when it is imported: messages that match are not printed.
_UNSEEN = "RAY_DEDUP_LOGS_SKIP_REGEX"


def cluster_address() -> str | None:
    """Return HOST:PORT of the head, or `auto`; None if the environment names no cluster.

    Raises:
        ParamsError: `CLOZELINE_CLUSTER` has another form.
    """
    given = os.environ.get(VARIABLE, "").strip()
    if not given:
        return None
    found = _ADDRESS.fullmatch(given)
    if found is None:
        raise ParamsError(
            f"{VARIABLE} must be ray://HOST:PORT of the head, or ray://auto on one of its nodes, not {given}",
            do=f"correct {VARIABLE} as `ray start --head` prints it, or unset it to work on this machine alone",
        )
    return found[1]


def takes_whole_stages(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether nodes run whole stages. They need the project's folder, so not where a store stands in for it.

    Raises:
        ParamsError: `CLOZELINE_CLUSTER` has another form.
    """
    return cluster_address() is not None and not environment.get(STORE, "").strip()


def reachable_cluster() -> str | None:
    """Return the address of the cluster as `cluster_address` does, once its head answers.

    Ray, if it is imported afterwards, prints nothing of its own: when a node dies, it would write pages of a raylet's
    state to our standard output, where `--json` promises one object. Our own messages name the task and the node.

    Raises:
        ParamsError: `CLOZELINE_CLUSTER` has another form.
        TransientError: nothing answers there.
    """
    address = cluster_address()
    if address is not None and address != AUTO:
        check_reachable(address)
    if address is not None:
        os.environ.setdefault(_UNSEEN, ".")
    return address


def check_reachable(address: str) -> None:
    """Raises:
    TransientError: nothing answers at HOST:PORT.
    """
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except OSError as error:
        raise TransientError(
            f"no cluster answers at {address} ({VARIABLE}): {error}",
            do=f"start it (`ray start --head --port={port}`, see docs/cluster.md), or unset {VARIABLE}",
        ) from error
