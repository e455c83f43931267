"""A loaded model starts no threads of its own."""

from pathlib import Path

import pytest

from clozeline.inference.package import load


def test_loading_a_model_starts_no_threads(dist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")  # as the server sets it
    before = len(list(Path("/proc/self/task").iterdir()))
    load(dist / "library").tokenize(["a", "b"] * 100)
    assert len(list(Path("/proc/self/task").iterdir())) == before
