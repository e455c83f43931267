"""If a change of the champion is killed at any write, a champion remains and the next command finishes the change."""

import shutil
from pathlib import Path

import pytest
from mlflow import MlflowClient

from clozeline.registry.decisions import versions_in_use
from clozeline.registry.models import CANDIDATE, CHAMPION, PREVIOUS
from clozeline.registry.versions import Registry
from clozeline.system.errors import ArtifactError
from tests.make.kills import is_killed

NAME = "clozeline-encoder"
WRITES = (
    "create_model_version",
    *(f"{verb}_{thing}" for verb in ("set", "delete") for thing in ("registered_model_alias", "model_version_tag")),
)
NUM_WRITES = 6


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Database in which version 2 is the champion, version 1 the previous one and version 3 the candidate."""
    path = tmp_path_factory.mktemp("registry") / "mlflow.db"
    registry = Registry.open(f"sqlite:///{path}")
    for version in "123":
        registry.register(NAME, source="file:///x", run_id="", package_sha256=version, description="")
        registry.nominate(registry.version(NAME, version))
        if version != "3":
            registry.promote(registry.version(NAME, version))
    return path


@pytest.fixture
def registry(database: Path, tmp_path: Path) -> Registry:
    return Registry.open(f"sqlite:///{shutil.copy(database, tmp_path)}")


def aliases(registry: Registry) -> dict[str, str]:
    found = {alias: registry.at(NAME, alias) for alias in (CHAMPION, PREVIOUS, CANDIDATE)}
    return {alias: version.version for alias, version in found.items() if version}


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
    assert (done.champion, done.previous) == {"2": ("1", "2"), "3": ("2", "3")}[recorded]
    assert aliases(registry)[CHAMPION] == done.champion
    assert aliases(registry)[PREVIOUS] == done.previous


def test_a_rollback_can_go_to_any_version(registry: Registry) -> None:
    registry.promote(registry.version(NAME, "3"))
    done = registry.roll_back(NAME, to="1")
    assert (done.champion, done.previous) == ("1", "3")
    assert aliases(registry) == {CHAMPION: "1", PREVIOUS: "3"}
    assert registry.version(NAME, "3").was_rolled_back
    assert registry.roll_back(NAME, to="3").champion == "3"
    assert not registry.version(NAME, "3").was_rolled_back


@pytest.mark.parametrize(("version", "problem"), [("2", "no version to go back to"), ("9", "registry has no")])
def test_a_rollback_to_the_champion_or_an_unknown_version_is_refused(
    registry: Registry, version: str, problem: str
) -> None:
    with pytest.raises(ArtifactError, match=problem):
        registry.roll_back(NAME, to=version)
    assert aliases(registry) == {CHAMPION: "2", PREVIOUS: "1", CANDIDATE: "3"}


def test_a_champion_that_is_also_the_previous_version_is_not_rolled_back_to_itself(
    database: Path, tmp_path: Path
) -> None:
    address = f"sqlite:///{shutil.copy(database, tmp_path)}"
    registry, client = Registry.open(address), MlflowClient(address)
    client.set_registered_model_alias(NAME, PREVIOUS, "2")
    with pytest.raises(ArtifactError, match="no version to go back to") as caught:
        registry.roll_back(NAME)
    assert f"`clozeline rollback {NAME} --to VERSION`" in caught.value.do
    assert aliases(registry)[CHAMPION] == "2"
    assert registry.roll_back(NAME, to="1").champion == "1"


@pytest.mark.parametrize("undo", [False, True])
@pytest.mark.parametrize("write", range(6))
def test_repeating_a_killed_rollback_finishes_it(registry: Registry, write: int, undo: bool) -> None:
    if undo:
        registry.roll_back(NAME)
    changed = {False: {CHAMPION: "1", PREVIOUS: "2"}, True: {CHAMPION: "2", PREVIOUS: "1"}}[undo]
    if is_killed(lambda: registry.roll_back(NAME, undo=undo), at_write=write, writes=WRITES):
        done = registry.roll_back(NAME, undo=undo)
        assert (done.champion, done.previous) == (changed[CHAMPION], changed[PREVIOUS])
    assert aliases(registry) == {**changed, CANDIDATE: "3"}
    assert registry.version(NAME, "2").was_rolled_back is not undo
    kinds = [change.kind for change in registry.changes(NAME)]
    assert kinds == ["promotion", "promotion", "rollback", *["undo"] * undo], "each change is recorded once"


@pytest.mark.parametrize("write", range(NUM_WRITES))
def test_both_versions_of_a_killed_promotion_count_as_in_use(registry: Registry, tmp_path: Path, write: int) -> None:
    third = registry.version(NAME, "3")
    assert is_killed(lambda: registry.promote(third), at_write=write, writes=WRITES)
    assert {"2", "3"} <= {version.version for version in versions_in_use(f"sqlite:///{tmp_path / 'mlflow.db'}")}
