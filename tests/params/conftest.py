"""A fixture for all tests of params."""

from pathlib import Path

import pytest

from tests.make.params import PROJECT, Editor


@pytest.fixture
def edited(tmp_path: Path) -> Editor:
    """`edited(old, new)`: a copy of the project's params.yaml with one replacement."""

    def edit(old: str, new: str) -> Path:
        text = (PROJECT / "params.yaml").read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in params.yaml"
        path = tmp_path / "params.yaml"
        path.write_text(text.replace(old, new), encoding="utf-8")
        return path

    return edit
