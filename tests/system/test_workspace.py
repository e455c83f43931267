"""The tools that a command starts get the settings of the project; what the environment says wins."""

import os
from pathlib import Path

import pytest

from clozeline.system.workspace import Workspace, set_defaults


@pytest.fixture(autouse=True)
def environment_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*Workspace(Path()).defaults(), "http_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "to be put back")
        monkeypatch.delenv(name)


def test_a_fresh_clone_gets_a_prefect_home_and_quiet_tools_but_the_environment_wins(tmp_path, monkeypatch) -> None:
    set_defaults(Workspace(tmp_path))
    assert os.environ["PREFECT_HOME"] == str(tmp_path / "work" / "prefect")
    assert Path(os.environ["PREFECT_HOME"]).is_dir()
    assert os.environ["MLFLOW_TRACKING_URI"] == f"sqlite:///{tmp_path}/work/mlflow/mlflow.db"
    assert os.environ["DO_NOT_TRACK"] == "true"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000")
    set_defaults(Workspace(tmp_path))
    assert os.environ["MLFLOW_TRACKING_URI"] == "http://mlflow:5000"


def test_what_a_run_leaves_is_closed_to_other_users(tmp_path: Path) -> None:
    (tmp_path / "open" / "work").mkdir(mode=0o755, parents=True)
    for root in (tmp_path / "new", tmp_path / "open"):
        set_defaults(Workspace(root))
        assert (root / "work").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ["no_proxy", "NO_PROXY"])
def test_existing_no_proxy_entries_are_kept(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "corp.example, localhost")
    for _ in range(2):
        set_defaults(Workspace(tmp_path))
        assert os.environ["no_proxy"] == os.environ["NO_PROXY"] == "corp.example,localhost,127.0.0.1,::1"
