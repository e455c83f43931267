"""A flow run in MLflow is opened, resumed after an interruption and closed; no state of MLflow delays it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clozeline.records.record import LockedPath, LockedStage
from clozeline.tracking.delivery import WORKSPACE
from clozeline.tracking.runs import FlowRun
from tests.make.stores import delivered, run_of, runs_of
from tests.tracking.conftest import TAGS

LOCKED = LockedStage(
    cmd="train",
    deps=(LockedPath(path="data", md5="0" * 32 + ".dir", size=5), LockedPath(path="src/code.py", md5="1" * 32)),
    params={"params.yaml": {"pretrain": {"steps": 5, "model": {"hidden_size": 8}}}},
)
Open = Callable[..., FlowRun]


@pytest.fixture
def open_run(tmp_path: Path, address: str) -> Iterator[Open]:
    """`open_run(name, workspace)` opens a flow run with the outbox of a workspace."""
    opened: list[FlowRun] = []

    def open_run(name: str, workspace: str = "ours") -> FlowRun:
        opened.append(FlowRun(tmp_path / workspace, address, name, {WORKSPACE: workspace}))
        return opened[-1]

    yield open_run
    for run in opened:
        run._thread.close()


def start(run: FlowRun, fingerprint: str = "print") -> str:
    return run.start_stage("pretrain", fingerprint, TAGS)


def end(run: FlowRun, stage: str) -> None:
    run.end_stage(stage, "executed", LOCKED, metrics=[], shown=[])


@pytest.mark.parametrize("known", [None, "4"])
def test_a_stage_run_has_flat_params_unless_mlflow_has_others_and_inputs_by_hash_without_code(
    open_run: Open, tmp_path: Path, address: str, known: str | None
) -> None:
    run = open_run("run")
    stage = start(run)
    client = delivered(tmp_path / "ours", address)
    if known:
        client.log_param(run_of(client, stage).info.run_id, "pretrain.steps", known)
    end(run, stage)
    told = run_of(delivered(tmp_path / "ours", address), stage)
    assert told.data.params == {"pretrain.steps": known or "5", "pretrain.model.hidden_size": "8"}
    datasets = [given.dataset for given in told.inputs.dataset_inputs]
    assert [(one.name, one.digest) for one in datasets] == [("data", "0" * 32 + ".dir")]
    assert told.data.tags["dvc.stage_sha256"] == LOCKED.sha256
    assert told.info.status == "FINISHED"


def test_an_interrupted_stage_continues_its_run_under_the_new_parent(
    open_run: Open, tmp_path: Path, address: str
) -> None:
    start(open_run("first"))
    again = open_run("second")
    before = runs_of(delivered(tmp_path / "ours", address))
    assert before["first"].info.status == before["pretrain"].info.status == "KILLED"
    start(again)
    after = runs_of(delivered(tmp_path / "ours", address))
    assert after["pretrain"].info.run_id == before["pretrain"].info.run_id
    assert after["pretrain"].data.tags["mlflow.parentRunId"] == after["second"].info.run_id
    assert after["pretrain"].info.status == "RUNNING"


def test_an_unfinished_run_of_another_workspace_is_neither_adopted_nor_closed(
    open_run: Open, tmp_path: Path, address: str
) -> None:
    open_run("theirs", "colleague").start_stage("pretrain", "print", {WORKSPACE: "colleague"})
    theirs = runs_of(delivered(tmp_path / "colleague", address))
    stage = start(open_run("ours"))
    client = delivered(tmp_path / "ours", address)
    found = client.get_run(theirs["pretrain"].info.run_id)
    assert run_of(client, stage).info.run_id != found.info.run_id
    assert found.data.tags["mlflow.parentRunId"] == theirs["theirs"].info.run_id
    assert found.info.status == "RUNNING"


def test_other_params_or_a_finished_run_make_a_new_one(open_run: Open, tmp_path: Path, address: str) -> None:
    run = open_run("run")
    first, other = start(run), start(run, "other print")
    end(run, first)
    again = start(run)
    client = delivered(tmp_path / "ours", address)
    assert len({run_of(client, name).info.run_id for name in (first, other, again)}) == 3


def test_an_unchanged_stage_leaves_no_run(open_run: Open, tmp_path: Path, address: str) -> None:
    run = open_run("run")
    for is_known in (False, True):
        stage = start(run)
        if is_known:
            assert set(runs_of(delivered(tmp_path / "ours", address))) == {"run", "pretrain"}
        run.drop_stage(stage)
        assert set(runs_of(delivered(tmp_path / "ours", address))) == {"run"}


def test_characters_that_mlflow_refuses_in_names_are_replaced_and_the_outbox_is_empty_at_the_end(
    open_run: Open, tmp_path: Path, address: str
) -> None:
    metrics = tmp_path / "library.json"
    metrics.write_text('{"recall": {"C++ & co": 0.5, "ok": true, "name": "x"}}')
    tags = {"dvc.outcome.finetune@library": "executed"}
    open_run("run").end("FINISHED", tags=tags, metrics={"finetune/library": metrics}, files=[metrics])
    assert {path.name for path in (tmp_path / "ours").iterdir()} == {"delivery.lock"}
    told = runs_of(delivered(tmp_path / "ours", address))["run"]
    assert told.data.metrics == {"finetune/library.recall.C__ _ co": 0.5}
    assert told.data.tags["dvc.outcome.finetune_library"] == "executed"
    assert told.info.status == "FINISHED"
