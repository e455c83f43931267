"""The outbox keeps unsent messages through every kill, and delivers each once and in order."""

import shutil
from pathlib import Path

import pytest

from clozeline.tracking.delivery import Delivery, DeliveryThread
from clozeline.tracking.mlflow_messages import MlflowMessages
from clozeline.tracking.outbox import Curve, End, Facts, Message, OpenFlow, OpenStage, Outbox, Point
from tests.killed_writes import is_killed
from tests.mlflow_outbox import delivered, runs_of

WRITES = ("create_run", "log_batch", "log_artifact", "log_inputs", "set_terminated", "update_run")


@pytest.fixture
def outbox(tmp_path: Path) -> Outbox:
    return Outbox(tmp_path / "outbox")


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


def fill(outbox: Outbox, tmp_path: Path) -> None:
    """Add the messages of a flow run with one stage."""
    file = tmp_path / "stage.log"
    file.write_text("done")
    outbox.add(OpenFlow(run="flow", name="flow", workspace="here", tags={"a": "b"}, started_ms=1))
    outbox.add(
        OpenStage(run="stage", parent="flow", name="stage", workspace="here", fingerprint="f", tags={}, started_ms=2)
    )
    for step in (1, 2, 3):
        outbox.add(Curve(run="stage", points=(Point(key="loss", value=step, timestamp_ms=step, step=step),)))
    outbox.add(Facts(run="stage", params={"steps": "3"}, metrics=(Point(key="top1", value=0.5),)))
    outbox.add_file("stage", file)
    outbox.add(End(run="stage", status="FINISHED", ended_ms=3))
    outbox.add(End(run="flow", status="FINISHED", ended_ms=4))


def test_the_next_delivery_finishes_one_killed_after_any_write(tmp_path: Path) -> None:
    empty = tmp_path / "empty.db"
    MlflowMessages(Outbox(tmp_path), f"sqlite:///{empty}")
    at_write = 0
    killed = True
    while killed:
        folder = tmp_path / str(at_write)
        folder.mkdir()
        outbox, address = Outbox(folder / "outbox"), f"sqlite:///{shutil.copy(empty, folder / 'mlflow.db')}"
        fill(outbox, folder)
        first = Delivery(outbox, address)
        killed = is_killed(lambda first=first: first.deliver(), at_write=at_write, writes=WRITES)
        client = delivered(outbox.folder, address)
        runs = runs_of(client)
        assert {name: run.info.status for name, run in runs.items()} == {"flow": "FINISHED", "stage": "FINISHED"}
        stage = runs["stage"]
        assert [point.step for point in client.get_metric_history(stage.info.run_id, "loss")] == [1, 2, 3]
        assert [point.value for point in client.get_metric_history(stage.info.run_id, "top1")] == [0.5]
        assert stage.data.params == {"steps": "3"}
        assert [found.path for found in client.list_artifacts(stage.info.run_id)] == ["stage.log"]
        at_write += 1
    assert at_write > 6


def test_a_truncated_line_does_not_affect_the_others(outbox: Outbox, tmp_path: Path) -> None:
    fill(outbox, tmp_path)
    whole = outbox.journal.read_bytes()
    outbox.journal.write_bytes(whole[:-20])
    assert len(outbox.read(0)[0]) == 8, "the last line may still be written"
    outbox.add(End(run="flow", status="KILLED", ended_ms=5))
    messages, offset, num_cut = outbox.read(0)
    assert (len(messages), num_cut) == (9, 1)
    assert messages[-1][1] == End(run="flow", status="KILLED", ended_ms=5)
    assert offset == outbox.journal.stat().st_size


def test_a_file_is_stored_with_its_content_at_the_time_of_adding(outbox: Outbox, address: str, tmp_path: Path) -> None:
    fill(outbox, tmp_path)
    (tmp_path / "stage.log").write_text("another stage's")
    client = delivered(outbox.folder, address)
    stored = client.download_artifacts(runs_of(client)["stage"].info.run_id, "stage.log", str(tmp_path / "outbox"))
    assert Path(stored).read_text() == "done"


def test_an_unusable_outbox_folder_stops_no_stage(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("where the folder should be")
    outbox = Outbox(tmp_path / "file")
    outbox.add(End(run="flow", status="FINISHED", ended_ms=1))
    outbox.add_file("flow", tmp_path / "file")
    assert outbox.num_lost == 2


class Server:
    """Stand-in for MLflow: fails on request, and records what it accepted."""

    def __init__(self, *faults: Exception, is_away: bool = False) -> None:
        self.faults = list(faults)
        self.is_away = is_away
        self.took: list[str] = []

    def answers(self) -> bool:
        return not self.is_away

    def tell(self, message: Message) -> None:
        if self.is_away:
            raise ConnectionError("nobody listens")
        if self.faults:
            raise self.faults.pop()
        self.took.append(f"{message.kind} {message.run}")

    def tell_points(self, run: str, points: object) -> None:
        self.tell(Curve(run=run, points=()))


def delivery_to(server: Server, outbox: Outbox) -> Delivery:
    delivery = Delivery(outbox, "unused")
    delivery._receiver = server
    return delivery


ALL = ["open_flow flow", "open_stage stage", "curve stage", "facts stage", "file stage", "end stage", "end flow"]


def test_messages_wait_in_order_while_the_server_is_unreachable(outbox: Outbox, tmp_path: Path) -> None:
    fill(outbox, tmp_path)
    server = Server(is_away=True)
    delivery = delivery_to(server, outbox)
    assert [delivery.deliver() for _ in range(9)] == ["no answer"] * 9
    server.is_away = False
    assert delivery.deliver() == "done"
    assert server.took == ALL
    assert delivery.num_lost == 0


def test_an_unexpected_error_delays_a_message_and_does_not_lose_it(outbox: Outbox, tmp_path: Path) -> None:
    fill(outbox, tmp_path)
    server = Server(KeyError("metrics"), RuntimeError("no credentials"))
    delivery = delivery_to(server, outbox)
    assert [delivery.deliver() for _ in range(3)] == ["later", "later", "done"]
    assert server.took == ALL


def test_a_message_that_the_server_always_refuses_is_dropped_and_counted(outbox: Outbox, tmp_path: Path) -> None:
    fill(outbox, tmp_path)
    server = Server(*[KeyError("metrics")] * 5)
    delivery = delivery_to(server, outbox)
    assert [delivery.deliver() for _ in range(5)] == ["later"] * 4 + ["done"]
    assert server.took == ALL[1:]
    assert delivery.num_lost == 1


def test_files_that_could_not_be_stored_are_sent_again_in_their_order(outbox: Outbox, tmp_path: Path) -> None:
    file = tmp_path / "stage.log"
    file.write_text("done")
    for run in ("first", "second", "third"):
        outbox.add_file(run, file)
    server = Server(*[OSError("the store is full")] * 3)
    delivery = delivery_to(server, outbox)
    assert [delivery.deliver() for _ in range(2)] == ["later", "done"]
    assert server.took == ["file first", "file second", "file third"]


def test_closing_waits_for_a_server_only_up_to_its_timeout(outbox: Outbox, tmp_path: Path) -> None:
    fill(outbox, tmp_path)
    server = Server(is_away=True)
    delivery = delivery_to(server, outbox)
    assert not DeliveryThread(delivery, retry_seconds=0.05, close_seconds=0.2).close()
    delivery.clean_up()
    server.is_away = False
    thread = DeliveryThread(delivery_to(server, outbox), retry_seconds=0.05, close_seconds=20)
    assert thread.close()
    assert server.took == ALL
