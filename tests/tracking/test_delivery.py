"""The outbox keeps what MLflow lacks through every kill and outage, and MLflow gets all of it once.

No fault of tracking raises in a stage, or in a flow run once it is open.
"""

import shutil
import time
from contextlib import closing
from itertools import count, takewhile
from pathlib import Path
from unittest.mock import Mock

import pytest
from mlflow.tracking import MlflowClient

from clozeline.records.record import LockedPath, LockedStage
from clozeline.tracking.delivery import Delivery, DeliveryThread, MlflowRuns
from clozeline.tracking.mlflow import prepare
from clozeline.tracking.outbox import Outbox, TrackedRun
from clozeline.tracking.run_logger import run_logger
from clozeline.tracking.runs import FlowRun, deliver_waiting
from tests.make.kills import is_killed, is_killed_at
from tests.make.servers import MlflowServer
from tests.make.stores import delivered, run_of, runs_of
from tests.tracking.conftest import TAGS


def open_run(outbox: Outbox, name: str = "run", started_ms: int = 1, **more: str) -> None:
    outbox.open(name, TrackedRun(name=name, tags=TAGS, started_ms=started_ms, **more))


def fill(outbox: Outbox, tmp_path: Path) -> None:
    """Add a flow run with one stage."""
    file = tmp_path / "stage.log"
    file.write_text("done")
    outbox.open("flow", TrackedRun(name="flow", tags={**TAGS, "a": "b"}, started_ms=1))
    open_run(outbox, "stage", 2, parent="flow", fingerprint="f")
    for step in (1, 2, 3):
        outbox.add_points("stage", {"loss": step}, step)
    outbox.add_file("stage", file)
    outbox.add_file("stage", file, "plots/pretrain")
    file.write_text("another stage's")
    datasets = (LockedPath(path="data", md5="0" * 32, size=5),)
    outbox.end("stage", "FINISHED", params={"steps": "3"}, figures={"top1": 0.5}, tags={"c": "d"}, datasets=datasets)
    outbox.end("flow", "FINISHED", tags={"e": "f"})


def require_all(folder: Path, address: str) -> None:
    """Deliver the rest of `fill`; check that MLflow has each record once, and the outbox nothing."""
    client = delivered(folder, address)
    runs = runs_of(client)
    flow, stage = runs["flow"], runs["stage"]
    assert (flow.info.status, stage.info.status) == ("FINISHED", "FINISHED")
    assert [point.step for point in client.get_metric_history(stage.info.run_id, "loss")] == [1, 2, 3]
    assert [point.value for point in client.get_metric_history(stage.info.run_id, "top1")] == [0.5]
    assert stage.data.params == {"steps": "3"}
    assert stage.data.tags["mlflow.parentRunId"] == flow.info.run_id
    assert (flow.data.tags["a"], flow.data.tags["e"], stage.data.tags["c"]) == ("b", "f", "d")
    assert [given.dataset.name for given in stage.inputs.dataset_inputs] == ["data"]
    listed = [
        found.path for folder in ("", "plots/pretrain") for found in client.list_artifacts(stage.info.run_id, folder)
    ]
    assert listed == ["plots", "stage.log", "plots/pretrain/stage.log"]
    Outbox(folder).remove("the next run")  # which also removes what a killed removal left
    assert {path.name for path in folder.iterdir()} == {"delivery.lock"}
    stored = client.download_artifacts(stage.info.run_id, "stage.log", str(folder.parent))
    assert Path(stored).read_text() == "done", "what it was when it was added"


@pytest.mark.parametrize("at", ["a call", "a write of its own"])
def test_the_next_delivery_finishes_one_that_was_killed_anywhere(tmp_path: Path, empty_database: Path, at: str) -> None:
    calls = ("create_run", "log_batch", "log_artifact", "log_inputs", "set_terminated", "update_run")

    def is_finished_after(number: int) -> bool:
        folder = tmp_path / str(number)
        folder.mkdir()
        outbox, address = Outbox(folder / "outbox"), f"sqlite:///{shutil.copy(empty_database, folder / 'mlflow.db')}"
        fill(outbox, folder)
        deliver = Delivery(outbox, address).deliver
        if at == "a call":
            was_killed = is_killed(deliver, at_write=number, writes=calls)
        else:
            was_killed = is_killed_at(number, deliver, ["/outbox/"])
        require_all(outbox.folder, address)
        return was_killed

    assert len([*takewhile(is_finished_after, count())]) > 7


def test_a_truncated_line_does_not_affect_the_others(outbox: Outbox, address: str) -> None:
    open_run(outbox)
    for step in (1, 2, 3):
        outbox.add_points("run", {"loss": step}, step)
    file = outbox.folder / "run/points.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    assert [each.step for each in outbox.points("run", 0, has_ended=False)[0]] == [1, 2], "3 may still be written"
    outbox.add_points("run", {"loss": 4}, 4)
    outbox.end("run", "KILLED")
    with file.open("a") as opened:
        opened.write('{"values": {"loss"')  # by a stage that was killed
    delivery = Delivery(outbox, address)
    assert (delivery.deliver(), delivery.num_lost) == ("done", 2)
    client = MlflowClient(address)
    history = client.get_metric_history(run_of(client, "run").info.run_id, "loss")
    assert [point.step for point in history] == [1, 2, 4]


def test_an_unusable_outbox_folder_stops_no_stage(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("where the folder should be")
    outbox = Outbox(tmp_path / "file")
    open_run(outbox)
    outbox.add_points("run", {"loss": 1.0}, 1)
    outbox.add_file("run", tmp_path / "file")
    outbox.end("run", "FINISHED")
    assert outbox.num_lost == 4


def test_a_damaged_record_is_named_and_does_not_delay_the_others(outbox: Outbox, address: str, tmp_path: Path) -> None:
    fill(outbox, tmp_path)
    open_run(outbox, "damaged", 0)
    (outbox.folder / "damaged/record.json").write_text("{")
    assert "damaged/record.json" in deliver_waiting(outbox.folder, address)
    assert set(runs_of(prepare(address))) == {"flow", "stage"}
    assert outbox.runs() == ["damaged"]


@pytest.fixture
def mlflow() -> Mock:
    """Stand-in for MLflow, which takes everything."""
    server = Mock(MlflowRuns, tracking_uri="unused")
    server.open.side_effect = lambda run, record: run
    return server


def delivery_to(server: Mock, outbox: Outbox) -> Delivery:
    delivery = Delivery(outbox, "unused")
    delivery._mlflow = server
    return delivery


def asked(server: Mock) -> list[str]:
    """Return what the stand-in was asked since the last call."""
    calls = [f"{name} {given[0]}" for name, given, _ in server.method_calls if name != "answers"]
    server.reset_mock()
    return calls


FILES = ["add_file stage"] * 2
OF_STAGE = ["open stage", "set_facts stage", "add_metrics stage", "add_points stage"]
ALL = ["open flow", "set_facts flow", "end flow", *OF_STAGE, *FILES, "end stage"]


def test_everything_waits_while_the_server_is_unreachable(
    outbox: Outbox, tmp_path: Path, mlflow: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(outbox, tmp_path)
    delivery, takes = delivery_to(mlflow, outbox), mlflow.open.side_effect
    mlflow.open.side_effect, mlflow.answers.return_value = ConnectionError("nobody listens"), False
    assert [delivery.deliver() for _ in range(9)] == ["no answer"] * 9
    assert "nobody listens" in delivery.reason
    monkeypatch.setattr(DeliveryThread, "retry_seconds", 0.05)
    with monkeypatch.context() as soon:
        soon.setattr(DeliveryThread, "close_seconds", 0.2)
        assert not DeliveryThread(delivery).close(), "it waits no longer than its timeout"
    asked(mlflow)
    mlflow.open.side_effect, mlflow.answers.return_value = takes, True
    assert DeliveryThread(delivery).close()
    assert asked(mlflow) == ALL
    assert delivery.num_lost == 0


def test_an_unexpected_error_delays_a_step_and_one_that_is_always_refused_is_dropped_counted_and_explained(
    outbox: Outbox, tmp_path: Path, mlflow: Mock
) -> None:
    fill(outbox, tmp_path)
    mlflow.open.side_effect = [KeyError("metrics"), RuntimeError("no credentials"), "flow", "stage"]
    mlflow.set_facts.side_effect = [*[KeyError("metrics")] * 5, None]
    delivery = delivery_to(mlflow, outbox)
    assert [delivery.deliver() for _ in range(7)] == ["later"] * 6 + ["done"]
    assert asked(mlflow) == [*["open flow"] * 3, *["set_facts flow"] * 5, *ALL[2:]]
    assert delivery.num_lost == 1
    assert "metrics" in delivery.refusal


def test_files_that_could_not_be_stored_are_sent_again_and_delay_nothing_else(
    outbox: Outbox, tmp_path: Path, mlflow: Mock
) -> None:
    fill(outbox, tmp_path)
    mlflow.add_file.side_effect = KeyError("the store is full")
    delivery = delivery_to(mlflow, outbox)
    assert [delivery.deliver() for _ in range(9)] == ["later"] * 9
    assert asked(mlflow) == [*ALL, *FILES * 8]
    mlflow.add_file.side_effect = None
    assert delivery.deliver() == "done"
    assert asked(mlflow) == FILES
    assert delivery.num_lost == 0


LOCKED = LockedStage(cmd="train", params={"params.yaml": {"pretrain": {"steps": 9}}})


@pytest.mark.parametrize("away", ["from start to middle", "from end to next run"])
def test_an_unreachable_server_later_gets_everything_once_and_no_stage_waits_for_it(
    server: MlflowServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, away: str
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    metrics, log, folder = tmp_path / "pretrain.json", tmp_path / "pretrain.log", tmp_path / "outbox"
    metrics.write_text('{"top1": 0.5}')
    log.write_text("trained")
    is_early = away.startswith("from start")
    if is_early:
        server.stop()
    monkeypatch.setattr(DeliveryThread, "retry_seconds", 0.2)
    monkeypatch.setattr(DeliveryThread, "close_seconds", 60 if is_early else 1)
    run = FlowRun(folder, server.url, away, TAGS)
    stage = run.start_stage(f"stage {away}", "print", TAGS)
    for variable, value in run.environment(stage).items():
        monkeypatch.setenv(variable, value)
    began = time.monotonic()
    with closing(run_logger("pretrain")) as logger:
        for step in range(1, 10):
            logger.metrics({"loss": 1 / step}, step)
            if step == 5 and is_early:
                assert time.monotonic() - began < 10
                server.start()
    if not is_early:
        server.stop()
    run.end_stage(stage, "executed", LOCKED, metrics=[metrics], shown=[log])
    run.end("FINISHED", tags={"dvc.outcome.pretrain": "executed"}, metrics={"pretrain": metrics}, files=[log])
    if not is_early:
        server.start()

    client = delivered(folder, server.url)
    parent, child = (runs_of(client)[name] for name in (away, f"stage {away}"))
    assert {parent.info.status, child.info.status} == {"FINISHED"}
    assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert [point.step for point in client.get_metric_history(child.info.run_id, "loss")] == list(range(1, 10))
    assert child.data.metrics["top1"] == parent.data.metrics["pretrain.top1"] == 0.5
    assert child.data.params == {"pretrain.steps": "9"}
    assert {file.path for file in client.list_artifacts(child.info.run_id)} == {"pretrain.json", "pretrain.log"}


@pytest.mark.parametrize("uri", ["sqlite:////proc/nowhere/mlflow.db", "http://["])
def test_an_unusable_address_leaves_everything_in_the_outbox(uri: str, outbox: Outbox) -> None:
    open_run(outbox)
    outbox.add_points("run", {"loss": 1.0}, 1)
    delivery = Delivery(outbox, uri)
    assert delivery.deliver() == "no answer"
    assert delivery.reason
    assert [points.values for points in outbox.points("run", 0, has_ended=False)[0]] == [{"loss": 1.0}]


def test_a_truncated_metric_file_stops_no_flow(address: str, tmp_path: Path) -> None:
    metrics = tmp_path / "evaluate.json"
    metrics.write_text('{"perplexity": 12')
    run = FlowRun(tmp_path / "outbox", address, "run", TAGS)
    run.end("FINISHED", tags={}, metrics={"evaluate": metrics}, files=[])
    assert runs_of(MlflowClient(address))["run"].info.status == "FINISHED"
