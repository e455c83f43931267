import os
import shutil
from pathlib import Path

from clozeline.orchestration.checks import identity_of
from clozeline.system.workspace import Workspace


def test_a_workspace_keeps_its_identity(tmp_path: Path) -> None:
    assert identity_of(Workspace(tmp_path)) == identity_of(Workspace(tmp_path))


def test_two_workspaces_have_different_identities(tmp_path: Path) -> None:
    assert identity_of(Workspace(tmp_path / "one")) != identity_of(Workspace(tmp_path / "two"))


def test_a_moved_workspace_keeps_its_identity_and_a_copied_one_gets_its_own(tmp_path: Path) -> None:
    first = identity_of(Workspace(tmp_path / "first"))
    moved = Workspace((tmp_path / "first").rename(tmp_path / "moved"))
    assert identity_of(moved) == first
    copied = Workspace(shutil.copytree(tmp_path / "moved", tmp_path / "copied"))
    assert identity_of(copied) != first
    assert identity_of(copied) == identity_of(copied)
    assert identity_of(moved) == first


def test_a_copy_at_the_same_path_on_another_machine_gets_its_own_identity(tmp_path: Path) -> None:
    ours = tmp_path / "project"
    first = identity_of(Workspace(ours))
    shutil.copytree(ours, tmp_path / "on its way")
    ours.rename(tmp_path / "not on that machine")
    (tmp_path / "on its way").rename(ours)
    assert identity_of(Workspace(ours)) != first
    assert identity_of(Workspace(ours)) == identity_of(Workspace(ours))


def test_a_hard_linked_copy_gets_its_own_identity(tmp_path: Path) -> None:
    first = identity_of(Workspace(tmp_path / "first"))
    linked = shutil.copytree(tmp_path / "first", tmp_path / "linked", copy_function=os.link)
    assert identity_of(Workspace(linked)) != first
    assert identity_of(Workspace(tmp_path / "first")) == first
