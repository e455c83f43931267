"""A file that was kept is found by its hash after its content changed."""

import hashlib
from pathlib import Path

import pytest

from clozeline.versions import remote
from clozeline.versions.objects import Objects


def test_a_stored_file_is_found_after_the_workspace_copy_changed(toy: Path) -> None:
    file = toy / "start.lock"
    file.write_text("first")
    md5 = hashlib.md5(b"first", usedforsecurity=False).hexdigest()
    with Objects.open(toy) as objects:
        objects.keep(file)
        objects.keep(file)
        file.write_text("second")
        assert objects.fault_of("start.lock", md5, commit=None) is None
        other = hashlib.md5(b"third", usedforsecurity=False).hexdigest()
        assert objects.fault_of("start.lock", other, commit=None)


def test_a_file_in_the_workspace_is_not_looked_for_at_the_remote(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "store").mkdir()
    remote.add(toy, str(tmp_path / "store"))
    monkeypatch.setattr(Objects, "_fetch", lambda self, md5: pytest.fail("the remote was asked"))
    with Objects.open(toy) as objects:
        md5 = objects.md5_of(toy / "raw.txt")
        assert objects.fault_of("raw.txt", str(md5), None) is None
