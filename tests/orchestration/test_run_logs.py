"""Logs of past runs do not fill the disk, because only the newest are kept."""

import os
from pathlib import Path
from uuid import UUID

from clozeline.orchestration.stage_process import NUM_KEPT, forget_old_runs


def make_run(logs: Path, number: int) -> Path:
    """Make the folder of a run that ended `number` seconds after the first; its name does not show the order."""
    folder = logs / str(UUID(int=(number * 7919) % 2**32))
    folder.mkdir(parents=True)
    (folder / "upper.log").write_text("upper reads raw.txt\n")
    os.utime(folder, (number, number))
    return folder


def test_the_logs_of_the_newest_runs_are_kept(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, number) for number in range(NUM_KEPT + 3)]
    forget_old_runs(tmp_path)
    assert {*tmp_path.iterdir()} == {*runs[3:]}
    forget_old_runs(tmp_path)
    assert {*tmp_path.iterdir()} == {*runs[3:]}


def test_files_that_belong_to_no_run_are_kept(tmp_path: Path) -> None:
    others = {tmp_path / "mlflow-server.log", tmp_path / "notes"}
    (tmp_path / "mlflow-server.log").touch()
    (tmp_path / "notes").mkdir()
    for path in others:
        os.utime(path, (0, 0))
    runs = [make_run(tmp_path, number) for number in range(1, NUM_KEPT + 2)]
    forget_old_runs(tmp_path)
    assert {*tmp_path.iterdir()} == {*runs[1:], *others}


def test_a_project_without_runs_has_no_logs_to_delete(tmp_path: Path) -> None:
    forget_old_runs(tmp_path / "logs")
    assert [*tmp_path.iterdir()] == []
