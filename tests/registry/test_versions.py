"""Aliases name the live version. A team's registry is a server with the files, from which other machines fetch.

If a change of the champion is killed at any write, a champion remains and the next command finishes the change.
"""

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path

import mlflow
import pytest
from mlflow import MlflowClient

from clozeline.records.package import FILES, read_manifest, verify
from clozeline.registry import models, publishing
from clozeline.registry.decisions import Decision, released, versions_in_use
from clozeline.registry.models import CANDIDATE, CHAMPION, PREVIOUS
from clozeline.registry.publishing import Evidence, Publisher, example_texts
from clozeline.registry.trained import TrainedEncoder
from clozeline.registry.versions import Registry
from clozeline.system.errors import ArtifactError
from clozeline.system.workspace import Workspace
from clozeline.tracking.delivery import WORKSPACE
from tests.make.kills import is_killed
from tests.make.servers import MlflowServer
from tests.make.stores import aliases, write_versions

NAME = "clozeline-encoder"
URI = f"models:/{NAME}@champion"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_port: Callable[[], int]) -> Iterator[MlflowServer]:
    server = MlflowServer(tmp_path, free_port())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url)
    monkeypatch.setenv("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    try:
        server.start()
        yield server
    finally:
        server.stop()


def test_a_package_survives_a_round_trip_through_the_server_byte_for_byte(
    server: MlflowServer, encoder_package: Path, tmp_path: Path
) -> None:
    publisher = Publisher(server.url)
    evidence = Evidence(files={"metrics/export.json": encoder_package / FILES.manifest}, tags={})
    version = publisher.publish(encoder_package, NAME, evidence)
    publisher.check(version, example_texts(read_manifest(encoder_package)))
    publisher.registry.promote(version)
    with publisher.evidence(version) as folder:
        assert (folder / "metrics/export.json").read_bytes() == (encoder_package / FILES.manifest).read_bytes()

    elsewhere = Workspace(tmp_path / "elsewhere")
    found = models.fetch(URI, elsewhere)
    assert found.folder.is_relative_to(elsewhere.work)
    verify(found.folder, read_manifest(found.folder))
    server.stop()
    server.start()
    (found.folder / "kept").touch()
    assert (models.fetch(URI, elsewhere).folder / "kept").exists(), "fetched once, it is not fetched again"
    (answer,) = mlflow.pyfunc.load_model(URI).predict(["a [MASK]"])
    assert len(answer["masks"]) == 1

    copies = elsewhere.work / "registry"
    (copies / f"{NAME}-tiny-1-0123456789ab").mkdir()  # folder of another model
    package = shutil.copytree(encoder_package, tmp_path / "package")
    for kept in ({"1", "2"}, {"2", "3"}):  # the champion, and the previous one
        with (package / FILES.manifest).open("a") as manifest:
            manifest.write("\n")
        publisher.registry.promote(publisher.publish(package, NAME, evidence))
        models.fetch(URI, elsewhere)
        assert {folder.name.split("-")[2] for folder in copies.iterdir()} == {*kept, "tiny"}
    models.fetch(f"models:/{NAME}/1", elsewhere)
    assert len(list(copies.iterdir())) == 4, "a version that was asked for by its number takes no other's place"


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Database in which version 2 is the champion, version 1 the previous one and version 3 the candidate."""
    return write_versions(tmp_path_factory.mktemp("registry") / "mlflow.db")


@pytest.fixture
def address(database: Path, tmp_path: Path) -> str:
    return f"sqlite:///{shutil.copy(database, tmp_path)}"


@pytest.fixture
def registry(address: str) -> Registry:
    return Registry.open(address)


def test_a_rollback_can_go_to_any_version_and_be_taken_back_but_not_repeated(registry: Registry) -> None:
    with pytest.raises(ArtifactError, match="no rollback to undo"):
        registry.roll_back(NAME, undo=True)
    assert registry.roll_back(NAME).after == "1"
    assert registry.version(NAME, "2").was_rolled_back
    with pytest.raises(ArtifactError, match="rolled back already") as caught:
        registry.roll_back(NAME)
    assert f"`clozeline rollback {NAME} --undo`" in caught.value.do
    assert aliases(registry) == {CHAMPION: "1", PREVIOUS: "2", CANDIDATE: "3"}
    assert registry.roll_back(NAME, undo=True).after == "2"
    assert aliases(registry) == {CHAMPION: "2", PREVIOUS: "1", CANDIDATE: "3"}
    assert not registry.version(NAME, "2").was_rolled_back
    registry.promote(registry.version(NAME, "3"))
    done = registry.roll_back(NAME, to="1")
    assert (done.after, done.before) == ("1", "3")
    assert aliases(registry) == {CHAMPION: "1", PREVIOUS: "3"}
    assert registry.version(NAME, "3").was_rolled_back
    assert registry.roll_back(NAME, to="3").after == "3"
    assert not registry.version(NAME, "3").was_rolled_back


def test_a_rollback_without_another_version_to_go_to_is_refused(registry: Registry, address: str) -> None:
    registry.register("clozeline-new", source="file:///x", run_id="", package_sha256="1", description="")
    registry.promote(registry.version("clozeline-new", "1"))
    for name, to, told in (
        ("clozeline-new", None, "no version to go back to"),
        (NAME, "2", "no version to go back to"),
        (NAME, "9", "has no version 9"),
    ):
        with pytest.raises(ArtifactError, match=told):
            registry.roll_back(name, to=to)
    assert aliases(registry) == {CHAMPION: "2", PREVIOUS: "1", CANDIDATE: "3"}
    MlflowClient(address).set_registered_model_alias(NAME, PREVIOUS, "2")  # the champion itself
    with pytest.raises(ArtifactError, match="no version to go back to") as caught:
        registry.roll_back(NAME)
    assert f"`clozeline rollback {NAME} --to VERSION`" in caught.value.do
    assert aliases(registry)[CHAMPION] == "2"
    assert registry.roll_back(NAME, to="1").after == "1"


WRITES = (
    "create_model_version",
    *(f"{verb}_{thing}" for verb in ("set", "delete") for thing in ("registered_model_alias", "model_version_tag")),
)
NUM_WRITES = 6


def promote_third(registry: Registry, at_write: int) -> bool:
    """Return whether the promotion of version 3 was killed at this write."""
    third = registry.version(NAME, "3")
    return is_killed(lambda: registry.promote(third), at_write=at_write, writes=WRITES)


def test_a_promotion_makes_the_old_champion_the_previous_one_in_so_many_writes(registry: Registry) -> None:
    assert not promote_third(registry, NUM_WRITES)
    assert aliases(registry) == {CHAMPION: "3", PREVIOUS: "2"}


@pytest.mark.parametrize("write", range(NUM_WRITES))
def test_a_killed_promotion_leaves_a_champion_and_repeating_it_finishes_it(
    registry: Registry, address: str, write: int
) -> None:
    assert promote_third(registry, write)
    assert aliases(registry)[CHAMPION] in {"2", "3"}
    assert {"2", "3"} <= {version.version for version in versions_in_use(address)}
    registry.promote(registry.version(NAME, "3"))
    assert aliases(registry) == {CHAMPION: "3", PREVIOUS: "2"}


@pytest.mark.parametrize("write", range(NUM_WRITES))
def test_a_rollback_after_a_killed_promotion_goes_back_one_version(registry: Registry, write: int) -> None:
    assert promote_third(registry, write)
    recorded = registry.changes(NAME)[-1].after
    done = registry.roll_back(NAME)
    assert (done.after, done.before) == {"2": ("1", "2"), "3": ("2", "3")}[recorded]
    assert (aliases(registry)[CHAMPION], aliases(registry)[PREVIOUS]) == (done.after, done.before)


@pytest.mark.parametrize("undo", [False, True])
@pytest.mark.parametrize("write", range(NUM_WRITES))
def test_repeating_a_killed_rollback_finishes_it(registry: Registry, write: int, undo: bool) -> None:
    if undo:
        registry.roll_back(NAME)
    changed = {CHAMPION: "2", PREVIOUS: "1"} if undo else {CHAMPION: "1", PREVIOUS: "2"}
    if is_killed(lambda: registry.roll_back(NAME, undo=undo), at_write=write, writes=WRITES):
        done = registry.roll_back(NAME, undo=undo)
        assert (done.after, done.before) == (changed[CHAMPION], changed[PREVIOUS])
    assert aliases(registry) == {**changed, CANDIDATE: "3"}
    assert registry.version(NAME, "2").was_rolled_back is not undo
    kinds = [change.kind for change in registry.changes(NAME)]
    assert kinds == ["promotion", "promotion", "rollback", *["undo"] * undo], "each change is recorded once"


ALL_WRITES = tuple(
    name for name in dir(MlflowClient) if name.startswith(("create_", "delete_", "log_", "set_", "update_"))
)


def release(address: str, package: Path, metrics: Path) -> None:
    """Do the writes of `clozeline release` for one package, in the same order."""
    publisher = Publisher(address)
    publisher.close_killed("ours")
    evidence = Evidence({"evaluate.json": metrics}, {WORKSPACE: "ours"}, TrainedEncoder({"w": metrics}, {}))
    version = publisher.publish(package, NAME, evidence)
    if version.served_on is None:
        version = publisher.registry.serve(version, "int8", "Some CPU", 1.25)
    publisher.measured(version, {"latency/int8_text_milliseconds": 1.5})
    champion = publisher.registry.settle(NAME)
    if champion is None or champion.version != version.version:
        for day, outcome in (("01", "refused"), ("02", "promoted")):
            publisher.record(version, Decision.model_validate({"outcome": outcome}), f"202601{day}T000000Z.json")
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
    for at_write in count():
        (tmp_path / str(at_write)).mkdir()
        address = f"sqlite:///{shutil.copy(tmp_path / 'empty.db', tmp_path / str(at_write) / 'mlflow.db')}"
        killed = is_killed(partial(release, address, package, metrics), at_write=at_write, writes=ALL_WRITES)
        release(address, package, metrics)
        found = released(address, package)
        assert found
        assert (found.version.version, found.aliases) == ("1", (CHAMPION,)), at_write
        assert (found.version.served, found.version.served_on, found.version.int8_speedup) == ("int8", "Some CPU", 1.25)
        assert found.version.trained_sha256
        assert found.decision
        assert (found.decision.outcome, found.latency) == ("promoted", {"int8_text_milliseconds": 1.5})
        client = MlflowClient(address)
        assert set(client.get_registered_model(NAME).aliases) & {CANDIDATE, PREVIOUS} == set()
        assert len(client.search_model_versions(f"name = '{NAME}'")) == 1
        assert client.get_run(found.version.run_id).info.status == "FINISHED", at_write
        known = [experiment.experiment_id for experiment in client.search_experiments()]
        assert "RUNNING" not in {run.info.status for run in client.search_runs(known)}, at_write
        if not killed:
            break
    assert at_write > 10
