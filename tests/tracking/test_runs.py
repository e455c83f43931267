"""A flow run in MLflow is opened, resumed after an interruption and closed; no state of MLflow delays it."""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from mlflow.entities import Run

from clozeline.records.record import LockedPath, LockedStage
from clozeline.system.errors import ArtifactError
from clozeline.tracking.delivery import WORKSPACE
from clozeline.tracking.runs import FlowRun
from tests.make.stores import delivered, run_of, runs_of
from tests.tracking.conftest import TAGS

LOCKED = LockedStage(
    cmd="train",
    deps=(LockedPath(path="data", md5="0" * 32 + ".dir", size=5), LockedPath(path="src/code.py", md5="1" * 32)),
    params={"params.yaml": {"pretrain": {"steps": 5, "model": {"hidden_size": 8}}}},
)


def end(run: FlowRun, stage: str) -> None:
    run.end_stage(stage, "executed", LOCKED, metrics=[], shown=[])


class Project:
    """A workspace's outbox and a database."""

    def __init__(self, folder: Path, empty_database: Path) -> None:
        self.address = f"sqlite:///{shutil.copy(empty_database, folder)}"
        self._folder = folder
        self.opened: list[FlowRun] = []

    def open(self, name: str, workspace: str = "ours") -> FlowRun:
        self.opened.append(FlowRun(self._folder / workspace, self.address, name, {WORKSPACE: workspace}))
        return self.opened[-1]

    def runs(self, workspace: str = "ours") -> Mapping[str, Run]:
        return runs_of(delivered(self._folder / workspace, self.address))

    def run(self, stage: str, workspace: str = "ours") -> Run:
        return run_of(delivered(self._folder / workspace, self.address), stage)


@pytest.fixture
def project(tmp_path: Path, empty_database: Path) -> Iterator[Project]:
    project = Project(tmp_path, empty_database)
    yield project
    for run in project.opened:
        run._thread.close()


def test_a_stage_run_has_flat_params_and_inputs_by_hash_without_code(project: Project) -> None:
    run = project.open("run")
    end(run, run.start_stage("pretrain", "print", TAGS))
    told = project.runs()["pretrain"]
    assert told.data.params == {"pretrain.steps": "5", "pretrain.model.hidden_size": "8"}
    assert {given.dataset.name: given.dataset.digest for given in told.inputs.dataset_inputs} == {
        "data": "0" * 32 + ".dir"
    }
    assert told.data.tags["dvc.stage_sha256"] == LOCKED.sha256
    assert told.info.status == "FINISHED"


def test_a_conflicting_param_value_does_not_damage_the_run(project: Project, tmp_path: Path) -> None:
    run = project.open("run")
    stage = run.start_stage("pretrain", "print", TAGS)
    delivered(tmp_path / "ours", project.address).log_param(project.run(stage).info.run_id, "pretrain.steps", "4")
    end(run, stage)
    told = project.run(stage)
    assert told.data.params == {"pretrain.steps": "4", "pretrain.model.hidden_size": "8"}
    assert told.info.status == "FINISHED"


def test_an_interrupted_stage_continues_its_run_under_the_new_parent(project: Project) -> None:
    project.open("first").start_stage("pretrain", "print", TAGS)
    again = project.open("second")
    before = project.runs()
    assert before["first"].info.status == before["pretrain"].info.status == "KILLED"
    again.start_stage("pretrain", "print", TAGS)
    after = project.runs()
    assert after["pretrain"].info.run_id == before["pretrain"].info.run_id
    assert after["pretrain"].data.tags["mlflow.parentRunId"] == after["second"].info.run_id
    assert after["pretrain"].info.status == "RUNNING"


def test_an_unfinished_run_of_another_workspace_is_neither_adopted_nor_closed(project: Project) -> None:
    project.open("theirs", "colleague").start_stage("pretrain", "print", {WORKSPACE: "colleague"})
    theirs = project.runs("colleague")
    ours = project.open("ours").start_stage("pretrain", "print", TAGS)
    assert project.run(ours).info.run_id != theirs["pretrain"].info.run_id
    found = run_of(delivered(Path(), project.address), theirs["pretrain"].data.tags["clozeline.outbox_run"])
    assert found.data.tags["mlflow.parentRunId"] == theirs["theirs"].info.run_id
    assert found.info.status == "RUNNING"


def test_other_params_or_a_finished_run_make_a_new_one(project: Project) -> None:
    run = project.open("run")
    first = run.start_stage("pretrain", "print", TAGS)
    other = run.start_stage("pretrain", "other print", TAGS)
    end(run, first)
    again = run.start_stage("pretrain", "print", TAGS)
    assert len({project.run(name).info.run_id for name in (first, other, again)}) == 3


def test_an_unchanged_stage_leaves_no_run(project: Project) -> None:
    run = project.open("run")
    for is_known in (False, True):
        stage = run.start_stage("pretrain", "print", TAGS)
        if is_known:
            assert set(project.runs()) == {"run", "pretrain"}
        run.drop_stage(stage)
        assert set(project.runs()) == {"run"}


def test_characters_that_mlflow_refuses_in_names_are_replaced(project: Project, tmp_path: Path) -> None:
    metrics = tmp_path / "library.json"
    metrics.write_text('{"recall": {"C++ & co": 0.5, "ok": true, "name": "x"}}')
    project.open("run").end(
        "FINISHED", tags={"dvc.outcome.finetune@library": "executed"}, metrics={"finetune/library": metrics}, files=[]
    )
    told = project.runs()["run"]
    assert told.data.metrics == {"finetune/library.recall.C__ _ co": 0.5}
    assert told.data.tags["dvc.outcome.finetune_library"] == "executed"


def test_the_outbox_is_empty_once_mlflow_has_everything(project: Project, tmp_path: Path) -> None:
    file = tmp_path / "stage.log"
    file.write_text("done")
    project.open("run").end("FINISHED", tags={}, metrics={}, files=[file])
    assert {path.name for path in (tmp_path / "ours").iterdir()} == {"delivery.lock"}
    assert project.runs()["run"].info.status == "FINISHED"


def test_a_damaged_database_stops_a_run_before_it_begins(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_text("no database, but longer than its header would have to be" * 10)
    with pytest.raises(ArtifactError, match="is damaged"):
        FlowRun(tmp_path / "outbox", f"sqlite:///{tmp_path / 'mlflow.db'}", "run", TAGS)
    assert not (tmp_path / "outbox").exists()
