"""If a release is killed after any write to MLflow, running it again finishes it."""

import shutil
from functools import partial
from pathlib import Path

from mlflow import MlflowClient

from clozeline.registry.decisions import Decision, released
from clozeline.registry.models import CANDIDATE, CHAMPION, PREVIOUS
from clozeline.registry.publishing import Evidence, Publisher
from clozeline.registry.trained import TrainedEncoder
from clozeline.tracking.delivery import WORKSPACE
from tests.make.kills import is_killed

NAME = "clozeline-encoder"
WORKSPACE_NAME = "ours"
WRITES = tuple(name for name in dir(MlflowClient) if name.startswith(("create_", "delete_", "log_", "set_", "update_")))


def release(address: str, package: Path, metrics: Path) -> None:
    """Do the writes of `clozeline release` for one package, in the same order."""
    publisher = Publisher(address)
    publisher.close_killed(WORKSPACE_NAME)
    evidence = Evidence({"evaluate.json": metrics}, {WORKSPACE: WORKSPACE_NAME}, TrainedEncoder({"w": metrics}, {}))
    version = publisher.publish(package, NAME, evidence)
    if version.served_on is None:
        version = publisher.registry.serve(version, "int8", "Some CPU", 1.25)
    publisher.measured(version, {"latency/int8_text_milliseconds": 1.5})
    champion = publisher.registry.settle(NAME)
    if champion is None or champion.version != version.version:
        publisher.record(version, Decision(outcome="promoted"), "20260101T000000Z.json")
        publisher.registry.nominate(version)
        publisher.registry.promote(version)


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
        killed = is_killed(partial(release, address, package, metrics), at_write=at_write, writes=WRITES)
        release(address, package, metrics)
        found = released(address, package)
        assert found
        assert (found.version.version, found.aliases) == ("1", (CHAMPION,)), at_write
        assert (found.version.served, found.version.served_on, found.version.int8_speedup) == ("int8", "Some CPU", 1.25)
        assert found.version.trained_sha256
        assert found.decision
        assert found.decision.outcome == "promoted"
        client = MlflowClient(address)
        assert set(client.get_registered_model(NAME).aliases) & {CANDIDATE, PREVIOUS} == set()
        assert len(client.search_model_versions(f"name = '{NAME}'")) == 1
        assert client.get_run(found.version.run_id).info.status == "FINISHED", at_write
        known = [experiment.experiment_id for experiment in client.search_experiments()]
        assert "RUNNING" not in {run.info.status for run in client.search_runs(known)}, at_write
        if not killed:
            break
        at_write += 1
    assert at_write > 10
