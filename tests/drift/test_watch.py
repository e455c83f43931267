"""The state between polls decides which traffic is compared with which."""

import json
from pathlib import Path

import pytest

from clozeline.orchestration.drift import Limits, Served, Traffic, Verdict, Watch
from clozeline.system.errors import ArtifactError

LIMITS = Limits(min_texts=100)
URL, OTHER = "http://a:8000", "http://b:8000"


def counted(short: int, long: int, sha256: str = "1") -> dict[str, Served]:
    """Return the counts of a server that got so many short and long texts since it started."""
    lengths = {"8.0": short, "64.0": long}
    traffic = Traffic(texts_by_length=lengths, tokens=8 * short + 64 * long)
    return {"encoder": Served(version=sha256, sha256=sha256, traffic=traffic)}


def looked(*servers: dict[str, Served]) -> list[Verdict]:
    """Poll the servers in order, and return the verdicts."""
    watch, said = Watch(), []
    for served in servers:
        watch, verdicts = watch.look({URL: served}, LIMITS)
        said += verdicts
    return said


def test_later_texts_are_compared_with_the_first_ones_of_the_version() -> None:
    first, second, third = looked(counted(60, 0), counted(120, 0), counted(220, 0))
    assert (first.waits_for, first.num_texts) == ("60 of 100 texts for the reference", 0)
    assert second.waits_for == "120 of 100 texts for the reference"
    assert (third.num_texts, third.is_drift) == (100, False)


def test_different_texts_count_as_drift_once_there_are_enough() -> None:
    *_, few, enough = looked(counted(200, 0), counted(200, 90), counted(200, 110))
    assert few.waits_for == "90 of 100 texts since the last comparison"
    assert (enough.num_texts, enough.is_drift) == (110, True)
    assert "length_index" in str(enough)


def test_each_text_is_compared_once_and_the_reference_stays() -> None:
    *_, drifted, back = looked(counted(200, 0), counted(200, 150), counted(350, 150))
    assert drifted.is_drift
    assert (back.num_texts, back.is_drift) == (150, False)


def test_a_new_version_gets_its_own_reference() -> None:
    *_, moved, later, compared = looked(
        counted(200, 0), counted(200, 50, "2"), counted(200, 200, "2"), counted(200, 350, "2")
    )
    assert moved.waits_for == "0 of 100 texts for the reference"  # texts before this poll may belong to either version
    assert (moved.version, later.waits_for) == ("2", "150 of 100 texts for the reference")
    assert (compared.num_texts, compared.is_drift) == (150, False)


def test_a_restarted_server_keeps_its_reference() -> None:
    *_, again = looked(counted(200, 0), counted(10, 0), counted(110, 0))
    assert (again.num_texts, again.is_drift) == (110, False)


def test_the_traffic_of_all_replicas_is_added_also_if_one_restarts_or_joins() -> None:
    watch, _ = Watch().look({URL: counted(150, 0), OTHER: counted(50, 0)}, LIMITS)
    assert watch.models["encoder"].reference.num_texts == 200
    watch, [waits] = watch.look({URL: counted(180, 0), OTHER: counted(20, 0)}, LIMITS)  # the second restarted
    assert waits.waits_for == "50 of 100 texts since the last comparison"
    _, [verdict] = watch.look({URL: counted(180, 0), OTHER: counted(20, 40), "http://c:8000": counted(0, 30)}, LIMITS)
    assert (verdict.num_texts, verdict.is_drift) == (120, True)


def test_nothing_is_compared_while_replicas_serve_two_versions() -> None:
    before, _ = Watch().look({URL: counted(200, 0), OTHER: counted(0, 0)}, LIMITS)
    after, [verdict] = before.look({URL: counted(200, 500, "2"), OTHER: counted(0, 500)}, LIMITS)
    assert (after, verdict.version, verdict.num_texts) == (before, "1 and 2", 0)


def test_a_state_that_was_stored_before_there_were_fleets_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "server.json"
    watch, _ = Watch().look({URL: counted(200, 0)}, LIMITS)
    stored = json.loads(watch.model_dump_json())
    stored["models"]["encoder"]["seen"] = stored["models"]["encoder"]["seen"][URL]
    file.write_text(json.dumps(stored), encoding="utf-8")
    _, [verdict] = Watch.read(file).look({URL: counted(350, 0)}, LIMITS)
    assert verdict.num_texts == 150


def test_the_watch_is_restored_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "drift" / "server.json"
    watch, _ = Watch.read(file).look({URL: counted(200, 0)}, LIMITS)
    watch.write(file)
    assert Watch.read(file) == watch
    file.write_text("{", encoding="utf-8")
    with pytest.raises(ArtifactError, match=r"server\.json cannot be used"):
        Watch.read(file)


def scored(right: int, wrong: int) -> dict[str, Served]:
    """Return the counts of a server that got no other texts than those that feedback has scored."""
    return {"library": Served(version="1", sha256="1", traffic=Traffic(right=right, wrong=wrong))}


def test_an_increase_of_wrong_answers_is_drift_once_enough_are_scored() -> None:
    first, few, worse, as_before = looked(scored(180, 20), scored(280, 70), scored(330, 120), scored(510, 140))
    assert not first.shifts
    assert not few.shifts
    assert worse.is_drift
    assert "wrong_increase 0.3000, at most 0.1000: DRIFT" in str(worse)
    assert not as_before.is_drift
