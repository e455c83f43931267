"""Identity of a workspace, by which runs and locks of several people and machines are told apart."""

from pathlib import Path
from uuid import uuid4

from clozeline.artifacts.record import Record
from clozeline.storage.atomic import replacing_file
from clozeline.workspace import Workspace


class _Identity(Record):
    name: str
    root: str
    """Folder that the name was last used in."""


def identity_of(workspace: Workspace) -> str:
    """Return the identity of the workspace; make one on first use. The caller holds the run lock.

    A folder that was moved keeps its identity. A copy gets a new identity if the original still exists.
    """
    root = workspace.root.resolve()
    file = workspace.work / "identity.json"
    known = _Identity.model_validate_json(file.read_bytes()) if file.is_file() else None
    is_copy = known is not None and Path(known.root) != root and Path(known.root).exists()
    name = uuid4().hex if known is None or is_copy else known.name
    own = _Identity(name=name, root=str(root))
    if own != known:
        with replacing_file(file) as written:
            written.write_text(own.model_dump_json(), encoding="utf-8")
    return name
