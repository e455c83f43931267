"""If a release is killed after any write to MLflow, running it again finishes it."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow import MlflowClient

from clozeline.registry import CANDIDATE, CHAMPION, PREVIOUS
from clozeline.registry.decision import Decision
from clozeline.registry.history import released
from clozeline.registry.publishing import Evidence, Publisher
from clozeline.tracking.flow_run import WORKSPACE

NAME = "clozeline-encoder"
WORKSPACE_NAME = "ours"
WRITES = tuple(name for name in dir(MlflowClient) if name.startswith(("create_", "delete_", "log_", "set_", "update_")))


class KilledError(BaseException):
    """Stands for SIGKILL: no `except Exception` catches it."""


def release(address: str, package: Path, metrics: Path) -> None:
    """Do the writes of `clozeline release` for one package, in the same order."""
    publisher = Publisher(address)
    publisher.close_killed(WORKSPACE_NAME)
    evidence = Evidence({"evaluate.json": metrics}, {WORKSPACE: WORKSPACE_NAME})
    version = publisher.publish(package, NAME, evidence)
    if version.served_on is None:
        version = publisher.registry.serve(version, "int8", "Some CPU", 1.25)
    publisher.measured(version, {"latency/int8_text_milliseconds": 1.5})
    champion = publisher.registry.settle(NAME)
    if champion is None or champion.version != version.version:
        publisher.record(version, Decision(outcome="promoted"), "20260101T000000Z.json")
        publisher.registry.nominate(version)
        publisher.registry.promote(version)


def num_writes_until_killed(change: Callable[[], None], at_write: int) -> int:
    """Run `change`; every write from number `at_write` on raises, as if killed. Return the number of writes done."""
    num_done = 0

    def counted(write: Callable[..., object]) -> Callable[..., object]:
        def run(*given: object, **named: object) -> object:
            nonlocal num_done
            if num_done == at_write:
                raise KilledError
            num_done += 1
            return write(*given, **named)

        return run

    with pytest.MonkeyPatch.context() as monkeypatch:
        for name in WRITES:
            monkeypatch.setattr(MlflowClient, name, counted(getattr(MlflowClient, name)))
        try:
            change()
        except KilledError:
            assert num_done == at_write
    return num_done


def test_a_release_killed_after_any_write_ends_in_the_same_state_when_it_is_repeated(
    encoder_package: Path, tmp_path: Path
) -> None:
    metrics = tmp_path / "evaluate.json"
    metrics.write_text("{}")
    package = shutil.copytree(encoder_package, tmp_path / "dist" / "encoder")
    Publisher(f"sqlite:///{tmp_path / 'empty.db'}")
    at_write = 0
    while True:
        (tmp_path / str(at_write)).mkdir()
        shutil.copy(tmp_path / "empty.db", tmp_path / str(at_write) / "mlflow.db")
        address = f"sqlite:///{tmp_path / str(at_write) / 'mlflow.db'}"
        num_done = num_writes_until_killed(lambda address=address: release(address, package, metrics), at_write)
        release(address, package, metrics)
        found = released(address, package)
        assert found
        assert (found.version.version, found.aliases) == ("1", (CHAMPION,)), at_write
        assert (found.version.served, found.version.served_on, found.version.int8_speedup) == ("int8", "Some CPU", 1.25)
        assert found.decision
        assert found.decision.outcome == "promoted"
        client = MlflowClient(address)
        assert set(client.get_registered_model(NAME).aliases) & {CANDIDATE, PREVIOUS} == set()
        assert len(client.search_model_versions(f"name = '{NAME}'")) == 1
        assert client.get_run(found.version.run_id).info.status == "FINISHED", at_write
        known = [experiment.experiment_id for experiment in client.search_experiments()]
        assert "RUNNING" not in {run.info.status for run in client.search_runs(known)}, at_write
        if num_done < at_write:
            break
        at_write += 1
    assert at_write > 10
