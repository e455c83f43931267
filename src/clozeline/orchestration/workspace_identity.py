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
    inode: int
    """Inode of the file itself: a rename of the folder keeps it, a copy to any machine or path gets another one."""


def identity_of(workspace: Workspace) -> str:
    """Return the identity of the workspace; make one on first use. The caller holds the run lock.

    A renamed folder keeps its identity. A copy gets a new one, also on another machine, whose copy of the path says
    nothing about the original: two workspaces with one identity would close and adopt each other's running runs.
    """
    root = str(workspace.root.resolve())
    file = workspace.work / "identity.json"
    known = _Identity.model_validate_json(file.read_bytes()) if file.is_file() else None
    is_ours = known is not None and known.inode == file.stat().st_ino
    # The inode alone does not show a copy of hard links.
    name = known.name if known and is_ours and (known.root == root or not Path(known.root).exists()) else uuid4().hex
    if known is None or known.name != name or known.root != root:
        with replacing_file(file) as written:
            written.touch()
            own = _Identity(name=name, root=root, inode=written.stat().st_ino)
            written.write_text(own.model_dump_json(), encoding="utf-8")
    return name
