import shutil
from pathlib import Path

from clozeline.orchestration.workspace_identity import identity_of
from clozeline.workspace import Workspace


def test_a_workspace_keeps_its_identity(tmp_path: Path) -> None:
    assert identity_of(Workspace(tmp_path)) == identity_of(Workspace(tmp_path))


def test_two_workspaces_have_two(tmp_path: Path) -> None:
    assert identity_of(Workspace(tmp_path / "one")) != identity_of(Workspace(tmp_path / "two"))


def test_a_moved_workspace_keeps_its_identity_and_a_copied_one_gets_its_own(tmp_path: Path) -> None:
    first = identity_of(Workspace(tmp_path / "first"))
    moved = Workspace((tmp_path / "first").rename(tmp_path / "moved"))
    assert identity_of(moved) == first
    copied = Workspace(shutil.copytree(tmp_path / "moved", tmp_path / "copied"))
    assert identity_of(copied) != first
    assert identity_of(copied) == identity_of(copied)
    assert identity_of(moved) == first
