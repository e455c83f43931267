"""Checks of the nodes before the first task: the same programs as here, and the same files."""

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from clozeline.cluster.store import Store
from clozeline.errors import ClozelineError, ClusterError
from clozeline.storage.fingerprints import code_of, fingerprint, versions_of

_MOST_NAMED = 3
"""Differing packages that a message names."""


@dataclass(frozen=True)
class Token:
    """File of the shared folder, or of the store, with content that no other file has."""

    path: Path
    content: str
    store: Store | None = None

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
    versions: Mapping[str, str]
    """Versions of Python and of each package that Clozeline requires; fingerprint of Clozeline's own code."""
    reads_token: bool
    fault: str = ""
    """Why it does not read the token."""


@contextmanager
def token_in(shared: Path, store: Store | None = None) -> Iterator[Token]:
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


def facts_of(node: str, token: Token) -> NodeFacts:
    """Return the facts of the node that this process runs on."""
    names = {re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in metadata.requires("clozeline") or ()}
    versions = versions_of(sorted(filter(_is_installed, {"clozeline", *names})))
    try:
        reads_token, fault = token.is_read(), "another file"
    except (OSError, ClozelineError) as error:
        reads_token, fault = False, str(error)
    return NodeFacts(node, versions | {"Clozeline's code": fingerprint({}, code_of([""]))}, reads_token, fault)


def check_nodes(found: Sequence[NodeFacts], here: NodeFacts, shared: Path, store: Store | None = None) -> None:
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
                f"node {facts.node} has other versions than this machine: {_in_words(other, facts.versions)}, not"
                f" {_in_words(other, here.versions)}",
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
