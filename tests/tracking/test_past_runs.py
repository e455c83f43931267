"""Runs are found: those behind a dvc.lock by its hashes, those to compare by name, by id, or as the last two. The
store of MLflow's files may be away or refuse the key: one clear error, on every way to its files.
"""

import hashlib
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from mlflow.entities import Run
from mlflow.tracking import MlflowClient
from ruamel.yaml import YAML

from clozeline.records.record import Lock
from clozeline.registry.models import Registered
from clozeline.registry.publishing import Publisher
from clozeline.system.errors import ArtifactError, TransientError
from clozeline.tracking import past_runs as module
from clozeline.tracking.delivery import WORKSPACE
from clozeline.tracking.outbox import OUTBOX, Outbox, Status
from clozeline.tracking.past_runs import compared_runs, past_runs
from clozeline.tracking.runs import FlowRun
from tests.make.stores import BUCKET, ObjectStore, run_of

TAGS = {WORKSPACE: "host:/project", "mlflow.source.git.commit": "abc", "git.is_dirty": "true"}


def write_lock(path: Path, **steps: int) -> Path:
    stages = {name: {"cmd": "train", "params": {"params.yaml": {"steps": value}}} for name, value in steps.items()}
    YAML().dump({"schema": "2.0", "stages": stages}, path)
    return path


def open_run(address: str, name: str) -> FlowRun:
    return FlowRun(Path(address.removeprefix("sqlite:///")).parent / "outbox", address, name, TAGS)


def end_with(run: FlowRun, lock_file: Path, files: Sequence[Path] = ()) -> str:
    """End `run` as the flow does, tagged with the hash of its dvc.lock; return its id."""
    md5 = hashlib.md5(lock_file.read_bytes(), usedforsecurity=False).hexdigest()
    run.end("FINISHED", tags={"dvc.lock_md5": md5}, metrics={}, files=files)
    return str(run_of(MlflowClient(run.tracking_uri), run.run).info.run_id)


def execute(run: FlowRun, lock_file: Path, stage: str, losses: Sequence[float] = ()) -> str:
    """Log a stage that executed, with a point of its loss for each step; return the name of its run in the outbox."""
    name = run.start_stage(stage, f"{stage} {lock_file.stem}", TAGS)
    for step, loss in enumerate(losses, start=1):
        Outbox(Path(run.environment(name)[OUTBOX])).add_points(name, {"loss": loss}, step)
    run.end_stage(name, "executed", Lock.read(lock_file).stages[stage], metrics=[], shown=[])
    return name


def test_run_stages_and_commit_of_a_lock_are_found_but_not_those_of_another_lock(address: str, tmp_path: Path) -> None:
    first, second = (write_lock(tmp_path / f"{steps}.lock", tokenize=5, pretrain=steps) for steps in (1, 2))
    runs, names = {}, dict[tuple[Path, str], str]()
    for number, lock in enumerate((first, second, second)):
        run = open_run(address, f"run {number}")
        for stage in ("tokenize", "pretrain") if lock == first else ("pretrain",):
            names[lock, stage] = execute(run, lock, stage)
        runs[lock] = end_with(run, lock)
        time.sleep(0.002)  # MLflow stores milliseconds
    made = {key: run_of(MlflowClient(address), name).info.run_id for key, name in names.items()}

    past = past_runs(address, first)
    assert (past.run_id, past.commit, past.is_dirty) == (runs[first], "abc", True)
    found = {name: stage.run_id for name, stage in past.stages.items()}
    assert found == {name: made[first, name] for name in ("tokenize", "pretrain")}
    assert all(stage.seconds >= 0 for stage in past.stages.values())
    past = past_runs(address, second)
    assert past.run_id == runs[second]
    assert past.stages["pretrain"].run_id == made[second, "pretrain"], "the newest with the same inputs"
    assert past.stages["tokenize"].run_id == made[first, "tokenize"]
    unknown = past_runs(address, write_lock(tmp_path / "unknown.lock", pretrain=3))
    assert (unknown.run_id, unknown.commit, unknown.stages) == (None, None, {})
    with pytest.raises(ArtifactError, match=r"dvc\.lock cannot be read"):
        past_runs(address, tmp_path / "dvc.lock")


def test_the_previous_run_is_the_newest_finished_one_with_another_lock(address: str, tmp_path: Path) -> None:
    def flow_run(lock: Path, top1: float, status: Status = "FINISHED") -> None:
        figures = tmp_path / "evaluate.json"
        figures.write_text(f'{{"top1": {top1}}}')
        stored = tmp_path / "dvc.lock"
        stored.write_bytes(lock.read_bytes())
        md5 = hashlib.md5(lock.read_bytes(), usedforsecurity=False).hexdigest()
        tags, metrics = {"dvc.lock_md5": md5}, {"evaluate": figures}
        open_run(address, lock.stem).end(status, tags=tags, metrics=metrics, files=[stored])
        time.sleep(0.002)  # MLflow stores milliseconds

    first, second, third, fourth = (write_lock(tmp_path / f"{steps}.lock", pretrain=steps) for steps in range(1, 5))
    flow_run(first, 0.1)
    assert past_runs(address, first).earlier is None
    flow_run(second, 0.2)
    flow_run(third, 0.3, "FAILED")
    flow_run(second, 0.2)
    flow_run(fourth, 0.4)
    earlier = past_runs(address, second).earlier
    assert earlier
    assert (earlier.figures, earlier.commit, earlier.lock) == ({"evaluate.top1": 0.1}, "abc", Lock.read(first))
    newest = past_runs(address, fourth).earlier
    assert newest
    assert newest.lock == Lock.read(second)
    shutil.rmtree(tmp_path / "artifacts")
    without = past_runs(address, fourth).earlier
    assert without
    assert (without.figures, without.lock) == ({"evaluate.top1": 0.2}, None)


def train(address: str, folder: Path, name: str, steps: int) -> str:
    """Log a flow run that trains, with a point of its loss at each step; return its id."""
    lock = write_lock(folder / "dvc.lock", pretrain=steps)
    run = open_run(address, name)
    execute(run, lock, "pretrain", [steps / step for step in range(1, steps + 1)])
    run_id = end_with(run, lock, files=[lock])
    time.sleep(0.002)  # MLflow stores milliseconds
    return run_id


def test_runs_are_found_by_name_by_id_and_as_the_last_two_with_other_results(address: str, tmp_path: Path) -> None:
    ids = [train(address, tmp_path, name, steps) for name, steps in (("fox", 2), ("owl", 3), ("elk", 3))]
    fox, owl = compared_runs(address, ["fox", ids[1][:12]])
    assert [(fox.name, fox.run_id), (owl.name, owl.run_id)] == [("fox", ids[0]), ("owl", ids[1])]
    assert MlflowClient(address).get_run(fox.training_id).data.metrics["loss"] == 1.0, "its last point"
    assert fox.lock
    assert fox.lock.stages["pretrain"].flat_params() == {"steps": "2"}
    assert [run.name for run in compared_runs(address, [])] == ["fox", "elk"], "owl has the results of elk"

    for wanted, fault in ((["fox", "bat"], "no run with this name"), (["fox", ids[0]], "number of runs")):
        with pytest.raises(ArtifactError, match=fault) as raised:
            compared_runs(address, wanted)
        assert f"elk ({ids[2][:8]}), owl ({ids[1][:8]}), fox ({ids[0][:8]})" in raised.value.do

    MlflowClient(address).set_tag(ids[2], "mlflow.runName", "owl")
    with pytest.raises(ArtifactError, match="2 runs have this name"):
        compared_runs(address, ["fox", "owl"])


LOCK = "schema: '2.0'\nstages: {}\n"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    keys = {"ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret", "DEFAULT_REGION": "us-east-1", "MAX_ATTEMPTS": "1"}
    for name, value in keys.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    with ObjectStore().serving() as store:
        monkeypatch.setenv("MLFLOW_S3_ENDPOINT_URL", store.url)
        yield store


@pytest.fixture
def run(store: ObjectStore, address: str) -> Run:
    """A run with its dvc.lock in a bucket."""
    client = MlflowClient(address, registry_uri=address)
    run = client.create_run(client.create_experiment("clozeline", artifact_location=f"s3://{BUCKET}/mlflow"))
    client.log_text(run.info.run_id, LOCK, "dvc.lock")
    client.log_text(run.info.run_id, LOCK, "evidence/dvc.lock")
    return run


def test_files_in_a_bucket_are_read_and_removed(run: Run, address: str) -> None:
    assert module.lock_of(run, address) == Lock(stages={})
    assert module.files_of(run, address) == dict.fromkeys(("dvc.lock", "evidence/dvc.lock"), len(LOCK))
    module.remove_files_of(run, address)
    assert module.files_of(run, address) == {}
    assert module.lock_of(run, address) is None


def test_a_store_that_refuses_the_key_or_does_not_answer_is_named(
    run: Run, address: str, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.num_writes_left = 0
    with pytest.raises(ArtifactError, match=r"store of MLflow's files .* refuses the key.*AccessDenied") as caught:
        module.remove_files_of(run, address)
    assert "AWS_ACCESS_KEY_ID" in caught.value.do
    monkeypatch.setenv("MLFLOW_S3_ENDPOINT_URL", "http://127.0.0.1:9")
    version = Registered(
        name="clozeline-encoder", version="1", run_id=run.info.run_id, package_sha256="", was_rolled_back=False
    )
    evidence = Publisher(address).evidence(version)
    for read in (lambda: module.lock_of(run, address), lambda: module.files_of(run, address), evidence.__enter__):
        with pytest.raises(TransientError, match=r"store of MLflow's files .* does not answer.*127\.0\.0\.1:9"):
            read()
