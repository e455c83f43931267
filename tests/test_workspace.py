import os
from pathlib import Path

import pytest

from clozeline.workspace import Workspace, set_defaults


@pytest.fixture(autouse=True)
def environment_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Workspace(Path()).defaults():
        monkeypatch.setenv(name, "to be put back")
        monkeypatch.delenv(name)


def test_a_fresh_clone_gets_a_prefect_home_and_quiet_tools(tmp_path: Path) -> None:
    set_defaults(Workspace(tmp_path))
    assert os.environ["PREFECT_HOME"] == str(tmp_path / "work" / "prefect")
    assert Path(os.environ["PREFECT_HOME"]).is_dir()
    assert os.environ["MLFLOW_TRACKING_URI"] == f"sqlite:///{tmp_path}/work/mlflow/mlflow.db"
    assert os.environ["DO_NOT_TRACK"] == "true"


def test_what_the_environment_says_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000")
    set_defaults(Workspace(tmp_path))
    assert os.environ["MLFLOW_TRACKING_URI"] == "http://mlflow:5000"
