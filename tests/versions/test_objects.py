"""A file that was kept is found by its hash after its content changed."""

import hashlib
from pathlib import Path

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
