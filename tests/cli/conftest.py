"""A folder that verbs accept as a project."""

import shutil
from pathlib import Path

import pytest

from clozeline.system.workspace import Workspace
from tests.conftest import PROJECT


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project in the current folder: dvc.yaml and params.yaml, without any data."""
    for name in ("dvc.yaml", "params.yaml"):
        shutil.copy(PROJECT / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    for name, value in Workspace(tmp_path).defaults().items():
        monkeypatch.setenv(name, value)
    return tmp_path
