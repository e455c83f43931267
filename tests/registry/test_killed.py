"""If a change of the champion is killed at any write, a champion remains and the next command finishes the change."""

import shutil
from functools import partial
from pathlib import Path

import pytest
from mlflow import MlflowClient

from clozeline.registry import publishing
from clozeline.registry.decisions import Decision, released, versions_in_use
from clozeline.registry.models import CANDIDATE, CHAMPION, PREVIOUS
from clozeline.registry.publishing import Evidence, Publisher
from clozeline.registry.trained import TrainedEncoder
from clozeline.registry.versions import Registry
from clozeline.tracking.delivery import WORKSPACE
from tests.make.kills import is_killed
from tests.make.stores import aliases, write_versions

NAME = "clozeline-encoder"
WRITES = (
    "create_model_version",
    *(f"{verb}_{thing}" for verb in ("set", "delete") for thing in ("registered_model_alias", "model_version_tag")),
)
NUM_WRITES = 6


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_versions(tmp_path_factory.mktemp("registry") / "mlflow.db")


@pytest.fixture
def registry(database: Path, tmp_path: Path) -> Registry:
    return Registry.open(f"sqlite:///{shutil.copy(database, tmp_path)}")


def test_a_promotion_makes_the_expected_number_of_writes(registry: Registry) -> None:
    third = registry.version(NAME, "3")
    assert not is_killed(lambda: registry.promote(third), at_write=NUM_WRITES, writes=WRITES)
    assert aliases(registry) == {CHAMPION: "3", PREVIOUS: "2"}


@pytest.mark.parametrize("write", range(NUM_WRITES))
def test_a_killed_promotion_leaves_a_champion_and_repeating_it_finishes_it(registry: Registry, write: int) -> None:
    third = registry.version(NAME, "3")
    assert is_killed(lambda: registry.promote(third), at_write=write, writes=WRITES)
    assert aliases(registry)[CHAMPION] in {"2", "3"}
    registry.promote(third)
    assert aliases(registry) == {CHAMPION: "3", PREVIOUS: "2"}


@pytest.mark.parametrize("write", range(NUM_WRITES))
def test_a_rollback_after_a_killed_promotion_goes_back_one_version(registry: Registry, write: int) -> None:
    third = registry.version(NAME, "3")
    assert is_killed(lambda: registry.promote(third), at_write=write, writes=WRITES)
    recorded = registry.changes(NAME)[-1].after
    done = registry.roll_back(NAME)
    assert (done.after, done.before) == {"2": ("1", "2"), "3": ("2", "3")}[recorded]
    assert aliases(registry)[CHAMPION] == done.after
    assert aliases(registry)[PREVIOUS] == done.before


@pytest.mark.parametrize("undo", [False, True])
@pytest.mark.parametrize("write", range(6))
def test_repeating_a_killed_rollback_finishes_it(registry: Registry, write: int, undo: bool) -> None:
    if undo:
        registry.roll_back(NAME)
    changed = {False: {CHAMPION: "1", PREVIOUS: "2"}, True: {CHAMPION: "2", PREVIOUS: "1"}}[undo]
    if is_killed(lambda: registry.roll_back(NAME, undo=undo), at_write=write, writes=WRITES):
        done = registry.roll_back(NAME, undo=undo)
        assert (done.after, done.before) == (changed[CHAMPION], changed[PREVIOUS])
    assert aliases(registry) == {**changed, CANDIDATE: "3"}
    assert registry.version(NAME, "2").was_rolled_back is not undo
    kinds = [change.kind for change in registry.changes(NAME)]
    assert kinds == ["promotion", "promotion", "rollback", *["undo"] * undo], "each change is recorded once"


@pytest.mark.parametrize("write", range(NUM_WRITES))
def test_both_versions_of_a_killed_promotion_count_as_in_use(registry: Registry, tmp_path: Path, write: int) -> None:
    third = registry.version(NAME, "3")
    assert is_killed(lambda: registry.promote(third), at_write=write, writes=WRITES)
    assert {"2", "3"} <= {version.version for version in versions_in_use(f"sqlite:///{tmp_path / 'mlflow.db'}")}


WORKSPACE_NAME = "ours"
ALL_WRITES = tuple(
    name for name in dir(MlflowClient) if name.startswith(("create_", "delete_", "log_", "set_", "update_"))
)


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
    encoder_package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow's own files of a model are left out: they take seconds each time, and no write to MLflow."""
    monkeypatch.setattr(publishing, "_save", lambda package, folder: shutil.copytree(package, folder / "package"))
    metrics = tmp_path / "evaluate.json"
    metrics.write_text("{}")
    package = shutil.copytree(encoder_package, tmp_path / "dist" / "encoder")
    Publisher(f"sqlite:///{tmp_path / 'empty.db'}")
    at_write = 0
    while True:
        (tmp_path / str(at_write)).mkdir()
        shutil.copy(tmp_path / "empty.db", tmp_path / str(at_write) / "mlflow.db")
        address = f"sqlite:///{tmp_path / str(at_write) / 'mlflow.db'}"
        killed = is_killed(partial(release, address, package, metrics), at_write=at_write, writes=ALL_WRITES)
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
