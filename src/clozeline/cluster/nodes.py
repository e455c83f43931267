"""The connection of this process to a Ray cluster, and what messages call its nodes.

Before the first task, each node is checked: it must have the same programs as this machine, and the same files.
"""

import logging
import os
import re
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from clozeline.cluster.store import VARIABLE, SharedStore, check_reachable
from clozeline.system.errors import ClozelineError, ClusterError, TransientError
from clozeline.system.files import code_of, fingerprint, versions_of

# Differing packages that a message names.
_MOST_NAMED = 3

# Time for a node to start its first process and to answer.
_NODE_SECONDS = 120.0
# Time for the head to answer; it may be busy.
_HEAD_SECONDS = 30.0
_LOOK_SECONDS = 1.0

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Token:
    """File of the shared folder, or of the store, with content that no other file has."""

    path: Path
    content: str
    store: SharedStore | None = None

    def is_read(self) -> bool:
        """Return whether this machine reads it, and may write beside it in a store.

        Raises:
            OSError: the folder has no such file.
            ClozelineError: the store does not answer, or refuses access.
        """
        if self.store is None:
            return self.path.read_text(encoding="utf-8") == self.content
        self.store.check()
        return self.store.read(str(self.path)) == self.content.encode()


@dataclass(frozen=True)
class NodeFacts:
    """What a node has."""

    node: str
    # Versions of Python and of each package that Clozeline requires; fingerprint of Clozeline's own code.
    versions: Mapping[str, str]
    reads_token: bool
    fault: str = ""  # why it does not read the token


@contextmanager
def token_in(shared: Path, store: SharedStore | None = None) -> Iterator[Token]:
    """Write a token into the folder, or the store in its place, for the time of the block."""
    if store is not None:
        token = Token(Path(f".shared.{secrets.token_hex(4)}"), secrets.token_hex(16), store)
        store.write(str(token.path), token.content.encode())
        try:
            yield token
        finally:
            store.remove([str(token.path)])
        return
    shared.mkdir(parents=True, exist_ok=True)
    token = Token(shared.resolve() / f".shared.{secrets.token_hex(4)}", secrets.token_hex(16))
    try:
        token.path.write_text(token.content, encoding="utf-8")
        yield token
    finally:
        token.path.unlink(missing_ok=True)


def facts_of(token: Token, name: str = "") -> NodeFacts:
    """Return the facts of the node that this process runs on, which messages call by its address without a name."""
    names = {re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in metadata.requires("clozeline") or ()}
    versions = versions_of(sorted(filter(_is_installed, {"clozeline", *names})))
    try:
        reads_token, fault = token.is_read(), "another file"
    except (OSError, ClozelineError) as error:
        reads_token, fault = False, str(error)
    return NodeFacts(
        name or named(this_node()), versions | {"Clozeline's code": fingerprint({}, code_of([""]))}, reads_token, fault
    )


def check_nodes(found: Sequence[NodeFacts], here: NodeFacts, shared: Path, store: SharedStore | None = None) -> None:
    """Check that each node would compute what this machine does.

    Raises:
        ClusterError: a node has other versions, or another folder at the path of the shared one, or it does not reach
            the store.
    """
    for facts in found:
        if not facts.reads_token and store is not None:
            raise ClusterError(
                f"node {facts.node} does not reach the store {store.url}: {facts.fault}",
                do="start its raylet again with the credentials (AWS_…) and the network of this machine, and repeat",
            )
        if not facts.reads_token:
            raise ClusterError(
                f"node {facts.node} does not see the files of this project, in {shared.resolve()}",
                do="put the project into a shared folder (NFS), mount it on each node at the same path, and run again",
            )
        names = {*facts.versions, *here.versions}
        other = sorted(name for name in names if facts.versions.get(name) != here.versions.get(name))
        if other:
            raise ClusterError(
                f"node {facts.node} has {_in_words(other, facts.versions)}, here {_in_words(other, here.versions)}",
                do="install the same Python, Clozeline and requirements.lock there, then start its raylet again",
            )


def _in_words(names: Sequence[str], versions: Mapping[str, str]) -> str:
    told = ", ".join(f"{name} {versions.get(name, 'missing')}" for name in names[:_MOST_NAMED])
    return told + (f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else "")


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


@contextmanager
def connection(address: str, shared: Path, store: SharedStore | None = None) -> Iterator[None]:
    """Connect this process to the cluster at `address` for the time of the block, after a check of each node.

    Raises:
        ClusterError: this machine is not a node of it; or a node has other versions, or does not see `shared`, or the
            store in its place.
    """
    with unchecked_connection(address):
        with token_in(shared, store) as token:
            check_nodes(_facts_of_nodes(token), facts_of(token, "here"), shared, store)
        yield


@contextmanager
def unchecked_connection(address: str) -> Iterator[None]:
    """Connect this process to the cluster at `address` for the time of the block.

    Raises:
        ClusterError: this machine is not a node of it.
    """
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    on_term = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError, RayError) as error:
        raise ClusterError(
            f"the cluster at ray://{address} does not take this machine as a node: {str(error).strip()}",
            do=f"run `ray start --address={address} --num-cpus=0` here, with the same Ray and token (docs/cluster.md)",
        ) from error
    finally:
        signal.signal(signal.SIGTERM, on_term)  # Ray replaces it, and we end our children by it
    try:
        yield
    finally:
        ray.shutdown()


def _facts_of_nodes(token: Token) -> list[NodeFacts]:
    facts_of_node = ray.remote(num_cpus=0, max_retries=0)(facts_of)
    asked = {
        node: facts_of_node.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(token)
        for node in addresses()
    }
    found = []
    for node, facts in asked.items():
        try:
            found.append(ray.get(facts, timeout=_NODE_SECONDS))
        except (RayError, GetTimeoutError) as error:
            raise ClusterError(
                f"node {named(node)} runs no task of ours within {_NODE_SECONDS:.0f} s: {first_line(error)}",
                do="start its raylet with the `ray` of the Python that has Clozeline; `ray status` lists the nodes",
            ) from error
    return found


def check_head() -> None:
    """Check that the head answers. Ray would end this process, silently, a minute after its head.

    Raises:
        TransientError: the head is gone.
    """
    try:
        check_reachable(ray.get_runtime_context().gcs_address)
    except TransientError as error:
        raise gone(error) from error


def this_node() -> str:
    node: str = ray.get_runtime_context().get_node_id()
    return node


def answer_of_head(ask: Callable[[], Answer]) -> Answer:
    """Return what `ask` returns, which Ray answers after a question to the head.

    Raises:
        TransientError: the head is gone, or does not answer.
    """
    check_head()
    answer: Future[Answer] = Future()
    threading.Thread(target=_ask, args=(ask, answer), daemon=True).start()  # it may wait longer than this process lives
    until = time.monotonic() + _HEAD_SECONDS
    while time.monotonic() < until:
        try:
            return answer.result(_LOOK_SECONDS)
        except TimeoutError:
            check_head()
    raise gone(TimeoutError(f"the head has not answered for {_HEAD_SECONDS:.0f} s"))


def _ask(ask: Callable[[], Answer], answer: Future[Answer]) -> None:
    try:
        answer.set_result(ask())
    except Exception as error:  # noqa: BLE001  # of Ray, raised where the answer is awaited
        answer.set_exception(error)


def living() -> list[dict[str, Any]]:
    """Return what Ray tells of each node that is alive. Raises what `answer_of_head` raises."""
    return [node for node in answer_of_head(ray.nodes) if node["Alive"]]


def addresses() -> dict[str, str]:
    """Return id → IP address of each node that is alive. Raises what `answer_of_head` raises."""
    return {node["NodeID"]: node["NodeManagerAddress"] for node in living()}


def named(node: str) -> str:
    return f"{addresses().get(node, 'lost')} ({node[:8]})"


def first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def gone(error: Exception) -> TransientError:
    return TransientError(
        f"the head of the cluster is gone: {first_line(error)}",
        do=f"start the cluster, then repeat the command: tasks that are done stay done (or unset {VARIABLE})",
    )
