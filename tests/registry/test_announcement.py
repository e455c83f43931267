"""A promotion or rollback says from when on the servers of a fleet answer by the new champion."""

import time
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from clozeline.registry.models import CHAMPION, NOTICE_VARIABLE, SERVE_FROM, Announcement
from clozeline.registry.versions import Registry
from clozeline.system.errors import ParamsError

NAME = "clozeline-encoder"


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """Versions 1 and 2; no champion."""
    registry = Registry.open(f"sqlite:///{tmp_path / 'mlflow.db'}")
    for number in "12":
        registry.register(NAME, source="s3://models/x", run_id="", package_sha256=number, description="")
    return registry


def announced(registry: Registry, version: str) -> Announcement:
    found = registry.version(NAME, version).announcement
    assert found
    return found


def test_what_is_written_is_read_back_and_anything_else_is_no_announcement() -> None:
    given = Announcement(1_700_000_000.25, 1_700_000_060.25)
    assert Announcement.parse(str(given)) == given
    assert str(given).startswith("2023-11-14T22:14:20.250000+00:00")
    for edited in ("", "soon", "2023-11-14T22:14:20+00:00", str(given).replace("2023", "x")):
        assert Announcement.parse(edited) is None


def test_the_first_champion_answers_at_once_and_each_later_one_after_its_notice(registry: Registry) -> None:
    registry.promote(registry.version(NAME, "1"))
    assert announced(registry, "1").serve_from_seconds == announced(registry, "1").announced_seconds
    before = time.time()
    registry.promote(registry.version(NAME, "2"))
    promoted = announced(registry, "2")
    assert before <= promoted.announced_seconds <= time.time()
    assert promoted.serve_from_seconds - promoted.announced_seconds == pytest.approx(60)
    registry.roll_back(NAME)
    rolled_back = announced(registry, "1")
    assert rolled_back.announced_seconds > promoted.announced_seconds
    assert rolled_back.serve_from_seconds - rolled_back.announced_seconds == pytest.approx(60)


def test_whoever_sees_the_new_champion_sees_its_time(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.promote(registry.version(NAME, "1"))
    seen: list[Announcement | None] = []
    move = MlflowClient.set_registered_model_alias

    def looked(client: MlflowClient, name: str, alias: str, version: str) -> None:
        if alias == CHAMPION:
            seen.append(registry.version(name, version).announcement)
        move(client, name, alias, version)

    monkeypatch.setattr(MlflowClient, "set_registered_model_alias", looked)
    registry.promote(registry.version(NAME, "2"))
    assert seen == [announced(registry, "2")]


def test_a_change_that_is_finished_later_does_not_postpone_the_turn_of_its_champion(registry: Registry) -> None:
    registry.promote(registry.version(NAME, "1"))
    registry.promote(registry.version(NAME, "2"))
    first = announced(registry, "2")
    registry._follow(NAME, since=1)  # as a second process that finishes the same change
    assert announced(registry, "2") == first


@pytest.mark.parametrize(("given", "seconds"), [("", 60.0), ("5", 5.0), ("0", 0.0)])
def test_the_notice_can_be_set(given: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NOTICE_VARIABLE, given)
    now = Announcement.now()
    assert now.serve_from_seconds - now.announced_seconds == pytest.approx(seconds)


@pytest.mark.parametrize("given", ["-1", "soon", "inf", "nan"])
def test_a_notice_that_is_no_time_is_refused(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NOTICE_VARIABLE, given)
    with pytest.raises(ParamsError, match="cannot be used"):
        Announcement.now()


def test_an_edited_tag_does_not_hide_the_version(registry: Registry) -> None:
    registry.tag(registry.version(NAME, "1"), SERVE_FROM, "tomorrow")
    assert registry.version(NAME, "1").announcement is None
