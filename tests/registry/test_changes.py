"""The list of changes decides which change of the champion counts, and records who made it, when and why."""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from http.server import ThreadingHTTPServer
from pathlib import Path
from unittest.mock import Mock

import pytest
import requests
from mlflow import MlflowClient
from mlflow.artifacts import download_artifacts
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import BAD_REQUEST, PERMISSION_DENIED

from clozeline.registry import changes as changes_module
from clozeline.registry.changes import ChampionChangedError, Change, ChangeList
from clozeline.registry.models import CHAMPION, PREVIOUS, Registered
from clozeline.registry.versions import Registry
from clozeline.system.errors import ArtifactError
from clozeline.tracking.mlflow import answering
from tests.make import servers
from tests.make.servers import Handler, server_over_postgres

NAME = "clozeline-encoder"


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


def registered(registry: Registry, count: int, name: str = NAME) -> list[str]:
    """Register so many versions; return their numbers."""
    return [
        registry.register(name, source="s3://models/x", run_id="", package_sha256=str(number), description="").version
        for number in range(count)
    ]


@pytest.fixture
def registry(address: str) -> Registry:
    """Versions 1 to 4; version 2 is the champion, version 1 the previous one."""
    registry = Registry.open(address)
    for number in registered(registry, 4)[:2]:
        registry.promote(registry.version(NAME, number))
    return registry


def at(registry: Registry, alias: str, name: str = NAME) -> str | None:
    found = registry.at(name, alias)
    return found.version if found else None


def version(registry: Registry, number: str) -> Registered:
    return registry.version(NAME, number)


def history(registry: Registry, name: str = NAME) -> list[tuple[str, str]]:
    return [(change.before, change.after) for change in registry.changes(name)]


def test_a_change_is_recorded_with_who_when_why_and_its_evidence(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ada")
    registry.promote(version(registry, "3"), replacing="2", why="better", evidence="runs:/7/decisions/x.json")
    registry.roll_back(NAME, to="1", why="wrong labels")
    promotion, rollback = registry.changes(NAME)[-2:]
    assert (promotion.kind, promotion.before, promotion.after) == ("promotion", "2", "3")
    assert (promotion.why, promotion.evidence) == ("better", "runs:/7/decisions/x.json")
    assert promotion.who.startswith("ada@")
    assert timedelta() <= datetime.now(UTC) - promotion.when < timedelta(hours=1)
    assert (rollback.kind, rollback.before, rollback.after, rollback.why) == ("rollback", "3", "1", "wrong labels")
    monkeypatch.delenv("MLFLOW_TRACKING_USERNAME")
    monkeypatch.setattr(changes_module.getpass, "getuser", Mock(side_effect=KeyError("uid not found")))
    assert changes_module.who().startswith("uid ")


def test_the_first_change_works_if_the_server_answers_403_for_missing_models(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As MLflow's server does for users who are no administrators."""
    create = MlflowClient.create_model_version

    def authorized(self: MlflowClient, name: str, *arguments: object, **options: object) -> object:
        if not self.search_registered_models(f"name = '{name}'"):
            raise MlflowException("Permission denied", PERMISSION_DENIED)
        return create(self, name, *arguments, **options)

    registry = Registry.open(address)
    registered(registry, 1)
    monkeypatch.setattr(MlflowClient, "create_model_version", authorized)
    registry.promote(version(registry, "1"))
    assert history(registry) == [("", "1")]


def test_a_promotion_is_refused_if_the_champion_changed_since_it_was_read(registry: Registry) -> None:
    for replacing in (None, "1", "4"):
        with pytest.raises(ChampionChangedError) as caught:
            registry.promote(version(registry, "3"), replacing=replacing)
        assert "version 1 to 2" in caught.value.cause
    assert (at(registry, CHAMPION), at(registry, PREVIOUS), len(history(registry))) == ("2", "1", 2)


def test_the_first_of_two_concurrent_changes_counts_and_one_sent_twice_counts_once(
    registry: Registry, address: str
) -> None:
    changes = ChangeList(MlflowClient(address))
    third, fourth = (Change(kind="promotion", before="2", after=number) for number in "34")
    for change in (third, fourth, third):  # as two processes do that both have seen version 2 as the champion
        changes._create(NAME, change, "s3://models/x", "")
    assert [change.key for change in registry.changes(NAME)[2:]] == [third.key]
    assert registry.settle(NAME) == version(registry, "3")
    registry.promote(version(registry, "4"))
    assert history(registry) == [("", "1"), ("1", "2"), ("2", "3"), ("3", "4")]


def test_a_stalled_promotion_does_not_overwrite_a_later_one(
    registry: Registry, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks at the list, stalls while someone else promotes, writes its alias, and then finds the new change."""
    late = MlflowClient(address)
    late_write = MlflowClient.set_registered_model_alias

    def stalled(client: MlflowClient, name: str, alias: str, number: str) -> None:
        if client is late and alias == CHAMPION and number == "3":
            registry.promote(version(registry, "4"))
            assert at(registry, CHAMPION) == "4"
        late_write(client, name, alias, number)

    monkeypatch.setattr(MlflowClient, "set_registered_model_alias", stalled)
    Registry(late, address).promote(version(registry, "3"), replacing="2")
    assert (at(registry, CHAMPION), at(registry, PREVIOUS)) == ("4", "3")
    assert history(registry)[2:] == [("2", "3"), ("3", "4")]


@pytest.mark.parametrize(("age", "champion"), [(timedelta(minutes=1), "2"), (timedelta(hours=1), "1")])
def test_an_alias_moved_in_mlflow_is_recorded_once_no_change_can_be_in_progress(
    registry: Registry, address: str, monkeypatch: pytest.MonkeyPatch, age: timedelta, champion: str
) -> None:
    MlflowClient(address).set_registered_model_alias(NAME, CHAMPION, "1")

    class Later(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:
            return datetime.now(UTC) + age

    monkeypatch.setattr("clozeline.registry.versions.datetime", Later)
    settled = registry.settle(NAME)
    assert settled
    assert (settled.version, at(registry, CHAMPION)) == (champion, champion)
    by_hand = [(change.before, change.after) for change in registry.changes(NAME) if change.kind == "by hand"]
    assert by_hand == ([("2", "1")] if champion == "1" else [])
    registry.promote(version(registry, "3"))
    assert history(registry)[-1] == (champion, "3")


def test_a_registry_without_a_change_list_starts_one_from_its_champion(address: str) -> None:
    registry = Registry.open(address)
    registered(registry, 2)
    MlflowClient(address).set_registered_model_alias(NAME, CHAMPION, "1")
    assert registry.settle(NAME) == version(registry, "1")
    registry.promote(version(registry, "2"))
    assert (history(registry), at(registry, PREVIOUS)) == ([("1", "2")], "1")


def test_a_tag_that_another_process_sets_at_the_same_moment_does_not_stop_a_promotion(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow looks whether the tag is there and then inserts it; the second of two inserts is a 400."""
    said = ["duplicate key value violates unique constraint 'x'", "UNIQUE constraint failed: model_version_tags.x"]
    set_tag = MlflowClient.set_model_version_tag

    def second(self: MlflowClient, *given: str) -> None:
        if said:
            raise MlflowException(said.pop(), BAD_REQUEST)
        set_tag(self, *given)

    monkeypatch.setattr(MlflowClient, "set_model_version_tag", second)
    registry.promote(version(registry, "3"), replacing="2")
    assert (at(registry, CHAMPION), at(registry, PREVIOUS), said) == ("3", "2", [])


def test_a_store_whose_client_is_not_installed_is_reported_with_the_command_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for address, module, package in (
        ("s3://models/1", "boto3", "boto3"),
        ("wasbs://models@team.blob.core.windows.net/1", "azure.storage.blob", "azure-storage-blob"),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ArtifactError, match="files of 1") as caught, answering("http://registry", "files of 1"):
            download_artifacts(artifact_uri=address, dst_path=str(tmp_path))
        assert "http://registry" in caught.value.cause
        assert f"pip install {package}`" in caught.value.do


@pytest.mark.parametrize(("status", "told_as"), [(401, "401 Unauthorized"), (403, "403 Forbidden")])
def test_a_caller_and_a_file_refused_by_the_server_are_reported_as_refused(
    monkeypatch: pytest.MonkeyPatch, status: int, told_as: str
) -> None:
    class Refusing(Handler):
        def do_GET(self) -> None:
            self.reply(status, b"Permission denied")

        do_PUT = do_GET

    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ada")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "secret")
    with servers.answering(ThreadingHTTPServer(("127.0.0.1", 0), Refusing)) as server:
        address = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(ArtifactError, match="refuses the request") as caught:
            Registry.open(address).at("clozeline-encoder", "champion")
        assert f"{address}/api/2.0/mlflow/registered-models/alias of user ada: {told_as}" in caught.value.problem
        assert "MLFLOW_TRACKING_USERNAME" in caught.value.do
        assert "secret" not in str(caught.value)
        monkeypatch.delenv("MLFLOW_TRACKING_USERNAME")
        answer = requests.put(f"{address}/api/2.0/mlflow-artifacts/artifacts/x", timeout=60)  # as MLflow's client does
        with pytest.raises(ArtifactError, match="of nobody: no user is set"), answering(address, "evidence"):
            answer.raise_for_status()


NUM_PEOPLE = 20


@pytest.mark.deployment  # a minute and a half: most of it, losers trying again
def test_twenty_promotions_at_once_end_with_one_champion_and_a_complete_history(
    tmp_path: Path, free_port: Callable[[], int]
) -> None:
    with server_over_postgres(tmp_path, free_port) as server:
        promote_all_at_once(server.url, "all")


def promote_all_at_once(url: str, name: str) -> None:
    registry = Registry.open(url)

    def promote_until_it_counts(number: str) -> int:
        """Promote over whoever is the champion, as a person does who tries again; return the number of refusals."""
        mine, refused = Registry.open(url), 0
        while True:
            try:
                mine.promote(mine.version(name, number), replacing=at(mine, CHAMPION, name), why=f"person {number}")
            except ChampionChangedError:
                refused += 1
            else:
                return refused

    numbers = registered(registry, NUM_PEOPLE, name)
    with ThreadPoolExecutor(NUM_PEOPLE) as people:
        assert sum(people.map(promote_until_it_counts, numbers)) > 0, "no two met"
    changes = registry.changes(name)
    assert sorted(change.after for change in changes) == sorted(numbers)
    assert [change.before for change in changes] == ["", *(change.after for change in changes[:-1])]
    assert [change.why for change in changes] == [f"person {change.after}" for change in changes]
    assert [at(registry, alias, name) for alias in (CHAMPION, PREVIOUS)] == [changes[-1].after, changes[-2].after]
