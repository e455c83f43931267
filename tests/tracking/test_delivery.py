"""The outbox keeps what MLflow lacks through every kill and outage, and MLflow gets all of it once.

No fault of tracking raises in a stage, or in a flow run once it is open.
"""

import os
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from mlflow.entities import Metric
from mlflow.tracking import MlflowClient

from clozeline.records.record import LockedPath, LockedStage
from clozeline.tracking.delivery import Delivery, DeliveryThread, MlflowRuns
from clozeline.tracking.mlflow import prepare
from clozeline.tracking.outbox import Outbox, TrackedRun
from clozeline.tracking.past_runs import attach
from clozeline.tracking.run_logger import MachineMetrics, OutboxRunLogger, run_logger
from clozeline.tracking.runs import FlowRun, deliver_waiting
from tests.make.kills import is_killed
from tests.make.servers import MlflowServer
from tests.make.stores import delivered, run_of, runs_of
from tests.tracking.conftest import TAGS

WRITES = ("create_run", "log_batch", "log_artifact", "log_inputs", "set_terminated", "update_run")


def fill(outbox: Outbox, tmp_path: Path) -> None:
    """Add a flow run with one stage."""
    file = tmp_path / "stage.log"
    file.write_text("done")
    outbox.open("flow", TrackedRun(name="flow", tags={**TAGS, "a": "b"}, started_ms=1))
    outbox.open("stage", TrackedRun(name="stage", tags=TAGS, started_ms=2, parent="flow", fingerprint="f"))
    for step in (1, 2, 3):
        outbox.add_points("stage", {"loss": step}, step)
    outbox.add_file("stage", file)
    outbox.add_file("stage", file, "plots/pretrain")
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
    assert [found.path for found in client.list_artifacts(stage.info.run_id)] == ["plots", "stage.log"]
    assert [found.path for found in client.list_artifacts(stage.info.run_id, "plots/pretrain")] == [
        "plots/pretrain/stage.log"
    ]
    assert {path.name for path in folder.iterdir()} == {"delivery.lock"}


def test_the_next_delivery_finishes_one_killed_at_any_call_of_mlflow(tmp_path: Path, empty_database: Path) -> None:
    at_write = 0
    killed = True
    while killed:
        folder = tmp_path / str(at_write)
        folder.mkdir()
        outbox, address = Outbox(folder / "outbox"), f"sqlite:///{shutil.copy(empty_database, folder / 'mlflow.db')}"
        fill(outbox, folder)
        first = Delivery(outbox, address)
        killed = is_killed(lambda first=first: first.deliver(), at_write=at_write, writes=WRITES)
        require_all(outbox.folder, address)
        at_write += 1
    assert at_write > 8


def is_killed_at_rename(delivery: Delivery, at_rename: int) -> bool:
    """Deliver in a child that is killed (-9) before its rename or removal number `at_rename`; whether it was killed."""
    child = os.fork()
    if child:
        return os.WIFSIGNALED(os.waitpid(child, 0)[1])
    left = at_rename
    replace, unlink = Path.replace, Path.unlink

    def counted() -> None:
        nonlocal left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1

    def counted_replace(path: Path, target: Path) -> Path:
        counted()
        return replace(path, target)

    def counted_unlink(path: Path, missing_ok: bool = False) -> None:
        counted()
        unlink(path, missing_ok)

    Path.replace, Path.unlink = counted_replace, counted_unlink  # type: ignore[method-assign]  # only in the child
    delivery.deliver()
    os._exit(0)


def test_the_next_delivery_finishes_one_killed_at_any_write_of_its_own(tmp_path: Path, empty_database: Path) -> None:
    at_rename = 0
    killed = True
    while killed:
        folder = tmp_path / str(at_rename)
        folder.mkdir()
        outbox, address = Outbox(folder / "outbox"), f"sqlite:///{shutil.copy(empty_database, folder / 'mlflow.db')}"
        fill(outbox, folder)
        killed = is_killed_at_rename(Delivery(outbox, address), at_rename)
        require_all(outbox.folder, address)
        at_rename += 1
    assert at_rename > 8


def test_a_truncated_line_does_not_affect_the_others(outbox: Outbox, address: str, tmp_path: Path) -> None:
    outbox.open("run", TrackedRun(name="run", tags=TAGS, started_ms=1))
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
    assert delivery.deliver() == "done"
    client = delivered(outbox.folder, address)
    history = client.get_metric_history(run_of(client, "run").info.run_id, "loss")
    assert [point.step for point in history] == [1, 2, 4]
    assert delivery.num_lost == 2


def test_a_file_is_stored_with_its_content_at_the_time_of_adding(outbox: Outbox, address: str, tmp_path: Path) -> None:
    fill(outbox, tmp_path)
    (tmp_path / "stage.log").write_text("another stage's")
    client = delivered(outbox.folder, address)
    stored = client.download_artifacts(runs_of(client)["stage"].info.run_id, "stage.log", str(tmp_path / "outbox"))
    assert Path(stored).read_text() == "done"


def test_an_unusable_outbox_folder_stops_no_stage(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("where the folder should be")
    outbox = Outbox(tmp_path / "file")
    outbox.open("flow", TrackedRun(name="flow", tags=TAGS, started_ms=1))
    outbox.add_points("flow", {"loss": 1.0}, 1)
    outbox.add_file("flow", tmp_path / "file")
    outbox.end("flow", "FINISHED")
    assert outbox.num_lost == 4


def test_what_comes_after_the_end_of_a_run_leaves_nothing_behind(outbox: Outbox, address: str, tmp_path: Path) -> None:
    fill(outbox, tmp_path)
    delivered(outbox.folder, address)
    outbox.add_points("stage", {"loss": 1.0}, 4)
    outbox.add_file("stage", tmp_path / "stage.log")
    outbox.end("stage", "KILLED")
    assert outbox.num_lost == 3
    require_all(outbox.folder, address)


def test_without_runs_nothing_is_asked_of_mlflow(outbox: Outbox) -> None:
    assert Delivery(outbox, "unused").deliver() == "done"
    assert not outbox.folder.exists()


def test_another_mlflow_gets_all_that_is_still_kept(outbox: Outbox, address: str, tmp_path: Path) -> None:
    outbox.open("run", TrackedRun(name="run", tags=TAGS, started_ms=1))
    outbox.add_points("run", {"loss": 1.0}, 1)
    delivered(outbox.folder, address)
    outbox.end("run", "FINISHED")
    other = delivered(outbox.folder, f"sqlite:///{tmp_path / 'other.db'}")
    assert run_of(other, "run").data.metrics == {"loss": 1.0}
    assert run_of(other, "run").info.status == "FINISHED"


def test_what_earlier_runs_left_is_delivered_and_killed_runs_are_closed(
    outbox: Outbox, address: str, tmp_path: Path
) -> None:
    outbox.open("flow", TrackedRun(name="flow", tags=TAGS, started_ms=1))
    outbox.open("stage", TrackedRun(name="stage", tags=TAGS, started_ms=2, parent="flow", fingerprint="f"))
    assert deliver_waiting(outbox.folder, address) == ""
    assert {run.info.status for run in runs_of(prepare(address)).values()} == {"KILLED"}
    assert not outbox.runs()


def test_a_damaged_record_is_named_and_does_not_delay_the_others(outbox: Outbox, address: str, tmp_path: Path) -> None:
    fill(outbox, tmp_path)
    outbox.open("damaged", TrackedRun(name="damaged", tags=TAGS, started_ms=0))
    (outbox.folder / "damaged/record.json").write_text("{")
    assert "damaged/record.json" in deliver_waiting(outbox.folder, address)
    assert set(runs_of(prepare(address))) == {"flow", "stage"}
    assert outbox.runs() == ["damaged"]


class Server(MlflowRuns):
    """Stand-in for MLflow: fails on request, and records what it accepted."""

    def __init__(self, *faults: Exception, is_away: bool = False) -> None:
        super().__init__("unused")
        self.faults = list(faults)
        self.is_away = is_away
        self.took: list[str] = []

    def answers(self) -> bool:
        return not self.is_away

    def take(self, what: str, run: str) -> None:
        if self.is_away:
            raise ConnectionError("nobody listens")
        if self.faults:
            raise self.faults.pop()
        self.took.append(f"{what} {run}")

    def open(self, run: str, record: TrackedRun) -> str:
        self.take("open", run)
        return run

    def set_facts(self, run_id: str, record: TrackedRun) -> None:
        self.take("facts", run_id)

    def add_metrics(self, run_id: str, metrics: Sequence[Metric]) -> None:
        self.take("metrics", run_id)

    def add_points(self, run_id: str, points: Sequence[Metric]) -> None:
        self.take("points", run_id)

    def add_file(self, run_id: str, file: Path, folder: str) -> None:
        self.take(f"file {folder}", run_id)

    def end(self, run_id: str, status: str, ended_ms: int | None) -> None:
        self.take("end", run_id)


def delivery_to(server: Server, outbox: Outbox) -> Delivery:
    delivery = Delivery(outbox, "unused")
    delivery._mlflow = server
    return delivery


ALL = [
    "open flow",
    "facts flow",
    "end flow",
    "open stage",
    "facts stage",
    "metrics stage",
    "points stage",
    "file plots/pretrain stage",
    "file . stage",
    "end stage",
]


def test_everything_waits_while_the_server_is_unreachable(outbox: Outbox, tmp_path: Path) -> None:
    fill(outbox, tmp_path)
    server = Server(is_away=True)
    delivery = delivery_to(server, outbox)
    assert [delivery.deliver() for _ in range(9)] == ["no answer"] * 9
    assert "nobody listens" in delivery.reason
    server.is_away = False
    assert delivery.deliver() == "done"
    assert server.took == ALL
    assert delivery.num_lost == 0


def test_an_unexpected_error_delays_a_step_and_does_not_lose_it(outbox: Outbox, tmp_path: Path) -> None:
    fill(outbox, tmp_path)
    server = Server(KeyError("metrics"), RuntimeError("no credentials"))
    delivery = delivery_to(server, outbox)
    assert [delivery.deliver() for _ in range(3)] == ["later", "later", "done"]
    assert server.took == ALL
    assert delivery.num_lost == 0


def test_a_step_that_the_server_always_refuses_is_dropped_counted_and_explained(outbox: Outbox, tmp_path: Path) -> None:
    fill(outbox, tmp_path)
    server = Server()
    delivery = delivery_to(server, outbox)
    refused = [KeyError("metrics")] * 5
    server.set_facts = lambda run_id, record: server.take("facts", run_id) if not refused else fail(refused)  # type: ignore[method-assign]
    assert [delivery.deliver() for _ in range(5)] == ["later"] * 4 + ["done"]
    assert server.took == [took for took in ALL if took != "facts flow"]
    assert delivery.num_lost == 1
    assert "metrics" in delivery.refusal


def fail(errors: list[KeyError]) -> None:
    raise errors.pop()


def test_a_run_that_cannot_be_made_stays_and_does_not_delay_the_others(outbox: Outbox, tmp_path: Path) -> None:
    for number, run in enumerate(("first", "second")):
        outbox.open(run, TrackedRun(name=run, tags=TAGS, started_ms=number))
        outbox.end(run, "FINISHED")
    server = Server(*[KeyError("name")] * 5)
    delivery = delivery_to(server, outbox)
    assert [delivery.deliver() for _ in range(5)] == ["later"] * 5
    assert outbox.runs() == ["first"]
    assert delivery.num_lost == 0
    assert delivery.deliver() == "done"


def test_files_that_could_not_be_stored_are_sent_again_and_delay_nothing_else(outbox: Outbox, tmp_path: Path) -> None:
    fill(outbox, tmp_path)
    server = Server()
    delivery = delivery_to(server, outbox)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(server, "add_file", lambda *given: fail([KeyError("the store is full")]))
        assert [delivery.deliver() for _ in range(9)] == ["later"] * 9
    assert server.took == [took for took in ALL if not took.startswith("file")]
    assert delivery.deliver() == "done"
    assert server.took[-2:] == ["file plots/pretrain stage", "file . stage"]
    assert delivery.num_lost == 0


def test_closing_waits_for_a_server_only_up_to_its_timeout(
    outbox: Outbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(outbox, tmp_path)
    server = Server(is_away=True)
    monkeypatch.setattr(DeliveryThread, "retry_seconds", 0.05)
    with monkeypatch.context() as soon:
        soon.setattr(DeliveryThread, "close_seconds", 0.2)
        assert not DeliveryThread(delivery_to(server, outbox)).close()
    server.is_away = False
    assert DeliveryThread(delivery_to(server, outbox)).close()
    assert server.took == ALL


LOCKED = LockedStage(cmd="train", params={"params.yaml": {"pretrain": {"steps": 9}}})


@pytest.mark.parametrize(
    ("away", "back"),
    [("start", "middle"), ("middle", "end"), ("end", "next run")],
)
def test_an_unreachable_server_later_gets_everything_once_and_no_stage_waits_for_it(
    server: MlflowServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, away: str, back: str
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    metrics, log = tmp_path / "pretrain.json", tmp_path / "pretrain.log"
    metrics.write_text('{"top1": 0.5}')
    log.write_text("trained")
    waited_seconds = 0.0

    def reach(moment: str) -> None:
        nonlocal waited_seconds
        started = time.monotonic()
        if moment == away:
            server.stop()
        if moment == back:
            server.start()
        waited_seconds += time.monotonic() - started

    name = f"away from {away} to {back}"
    folder = tmp_path / "outbox"
    reach("start")
    monkeypatch.setattr(DeliveryThread, "retry_seconds", 0.2)
    monkeypatch.setattr(DeliveryThread, "close_seconds", 1 if back == "next run" else 60)
    run = FlowRun(folder, server.url, name, TAGS)
    stage = run.start_stage(f"stage, {name}", "print", TAGS)
    for variable, value in run.environment(stage).items():
        monkeypatch.setenv(variable, value)
    logger = run_logger("pretrain")
    for step in range(1, 10):
        logger.metrics({"loss": 1 / step}, step)
        if step == 5:
            reach("middle")
    logger.close()
    reach("end")
    run.end_stage(stage, "executed", LOCKED, metrics=[metrics], shown=[log])
    run.end("FINISHED", tags={"dvc.outcome.pretrain": "executed"}, metrics={"pretrain": metrics}, files=[log])
    reach("next run")

    client = delivered(folder, server.url)
    runs = {known: run for known, run in runs_of(client).items() if name in known}
    parent, child = runs[name], runs[f"stage, {name}"]
    assert {parent.info.status, child.info.status} == {"FINISHED"}
    assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert [point.step for point in client.get_metric_history(child.info.run_id, "loss")] == list(range(1, 10))
    assert child.data.metrics["top1"] == parent.data.metrics["pretrain.top1"] == 0.5
    assert child.data.params == {"pretrain.steps": "9"}
    assert {file.path for file in client.list_artifacts(child.info.run_id)} == {"pretrain.json", "pretrain.log"}


class Monitor:
    """Stand-in for MLflow's monitors that fails in a chosen method."""

    fails_in: str | None = None

    def __init__(self) -> None:
        self._do("__init__")

    def collect_metrics(self) -> None:
        self._do("collect_metrics")

    def aggregate_metrics(self) -> Mapping[str, float]:
        return {type(self).__name__: 1.0}

    def clear_metrics(self) -> None:
        pass

    def _do(self, step: str) -> None:
        if step == self.fails_in:
            raise AttributeError("'NoneType' object has no attribute 'bytes_recv'")  # psutil without /proc/net/dev


class Blind(Monitor):
    fails_in = "__init__"


class Blinded(Monitor):
    fails_in = "collect_metrics"


def no_store(*arguments: Any) -> None:
    raise RuntimeError("no credentials for the bucket")


@pytest.mark.parametrize("uri", ["gopher://host/mlflow", "sqlite:////proc/nowhere/mlflow.db", "http://[", "\0"])
def test_an_unusable_address_leaves_everything_in_the_outbox(uri: str, tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "outbox")
    outbox.open("run", TrackedRun(name="run", tags=TAGS, started_ms=1))
    log = OutboxRunLogger(outbox, "run")
    log.metrics({"loss": 1.0}, 1)
    log.close()
    delivery = Delivery(outbox, uri)
    assert delivery.deliver() == "no answer"
    assert delivery.reason
    assert any("loss" in points.values for points in outbox.points("run", 0, has_ended=False)[0])


def test_unreadable_machine_metrics_are_left_out() -> None:
    machine = MachineMetrics([Blind, Blinded, Monitor])
    assert [machine.values(), machine.values()] == [{"system/Monitor": 1.0}] * 2


def test_a_non_numeric_value_does_not_affect_the_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    outbox = Outbox(tmp_path / "outbox")
    outbox.open("run", TrackedRun(name="run", tags=TAGS, started_ms=1))
    log = OutboxRunLogger(outbox, "run")
    log.metrics({"note": "none yet", "gone": None, "loss": 1.0}, 1)
    log.close()
    keys = [key for points in outbox.points("run", 0, has_ended=False)[0] for key in points.values]
    assert [key for key in keys if not key.startswith("system/")] == ["loss"]
    assert caplog.text.count("is no number") == 2


def test_an_unexpected_artifact_store_error_stops_no_flow_and_leaves_no_run_open(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "outbox"
    monkeypatch.setattr(DeliveryThread, "retry_seconds", 0.05)
    run = FlowRun(folder, address, "run", TAGS)
    file = tmp_path / "stage.log"
    file.write_text("done")
    with monkeypatch.context() as broken:
        broken.setattr(MlflowClient, "log_artifact", no_store)
        stage = run.start_stage("pretrain", "print", TAGS)
        run.end_stage(stage, "executed", LockedStage(cmd="train"), metrics=[], shown=[file])
        run.end("FINISHED", tags={}, metrics={}, files=[])
        client = MlflowClient(address)
        assert {found.info.status for found in client.search_runs(["1"])} == {"FINISHED"}
        assert not attach(address, client.search_runs(["1"])[0].info.run_id, file)
    assert "the next run delivers it" in caplog.text
    assert "no credentials for the bucket" in caplog.text, "the reason"
    stored = delivered(folder, address).list_artifacts(run_of(client, stage).info.run_id)
    assert [found.path for found in stored] == ["stage.log"]


def test_a_truncated_metric_file_stops_no_flow(address: str, tmp_path: Path) -> None:
    metrics = tmp_path / "evaluate.json"
    metrics.write_text('{"perplexity": 12')
    run = FlowRun(tmp_path / "outbox", address, "run", TAGS)
    run.end("FINISHED", tags={}, metrics={"evaluate": metrics}, files=[])
    assert runs_of(MlflowClient(address))["run"].info.status == "FINISHED"
