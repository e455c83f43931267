"""Tests of benchmarks import them as the benchmarks import each other: by their names in this folder."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))


@pytest.fixture
def no_known_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The benchmarks see no known data, and keep what they make to themselves."""
    from comparison import labelled

    monkeypatch.setattr(labelled, "KEPT", tmp_path / "kept")
    monkeypatch.setenv(labelled.DATA_VARIABLE, str(tmp_path / "nothing"))
