"""Counters read from a server match the requests it got."""

import math
import random
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozeline.orchestration.drift import DriftLimits, DriftState, Served, Traffic, Verdict, ask, read, shifts
from clozeline.records.finetune.statistics import stability_index
from clozeline.registry.sources import parse_sources
from clozeline.serving.access import ApiKeys
from clozeline.serving.loading import open_source
from clozeline.serving.models import Capacity, Catalogue, Service
from clozeline.serving.server import create_app
from clozeline.system.errors import ArtifactError, DataError, ParamsError, TransientError
from tests.make.packages import write_classifier, write_encoder
from tests.serving.conftest import run_app

KEY = "a-key-of-some-length"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("dist")
    write_encoder(folder / "encoder")
    write_classifier(folder / "library")
    service = Service(Capacity(num_workers=1))
    sources = parse_sources([str(folder / "encoder"), str(folder / "library")])
    service.open(Catalogue([open_source(source, "int8") for source in sources]))
    with run_app(create_app(service, ApiKeys.of([KEY]))) as client:
        client.headers["x-api-key"] = KEY
        yield client


def test_lengths_unknown_tokens_and_confidence_of_each_model_are_read(client: httpx.Client) -> None:
    client.post("/embed", json={"inputs": ["a 漢", "a " * 30]}).raise_for_status()
    client.post("/classify", json={"inputs": "the list"}).raise_for_status()
    served = ask(str(client.base_url), KEY)
    assert set(served) == {"encoder", "library"}
    card = client.get("/models").json()["models"][0]
    encoder = served["encoder"]
    assert (encoder.version, encoder.sha256) == (card["version"], card["sha256"])
    assert {bound: count for bound, count in encoder.traffic.texts_by_length.items() if count} == {"4.0": 1, "32.0": 1}
    assert (encoder.traffic.tokens, encoder.traffic.unknown_tokens) == (4 + 32, 1)
    assert encoder.traffic.num_answers == 0
    assert served["library"].traffic.num_answers == 1


def test_feedback_on_answers_is_counted_once_by_model_and_stores_no_text(client: httpx.Client) -> None:
    def traffic() -> Traffic:
        return ask(str(client.base_url), KEY)["library"].traffic

    before = traffic()
    answer = client.post("/classify", json={"inputs": ["the list", "open a file"]}).raise_for_status()
    best = [labels[0]["label"] for labels in answer.json()]
    told = {"request_id": answer.headers["x-request-id"], "right": [best[0], "another label"]}
    assert client.post("/feedback", json={**told, "right": best[:1]}).status_code == 422
    scored = client.post("/feedback", json=told).raise_for_status().json()
    assert (scored["model"], scored["num_right"], scored["num_wrong"]) == ("library", 1, 1)
    assert client.post("/feedback", json=told).status_code == 404
    after = traffic().since(before)
    assert (after.right, after.wrong, after.num_scored, after.wrong_rate) == (1, 1, 2, 0.5)


def test_a_server_that_refuses_or_does_not_answer_is_reported(client: httpx.Client) -> None:
    with pytest.raises(TransientError, match="does not return the counters"):
        ask(str(client.base_url))
    with pytest.raises(TransientError, match="does not return the counters"):
        ask("http://127.0.0.1:9")
    with pytest.raises(TransientError, match="correct the URL"):
        ask("http://127.0.0.1:PORT")


@pytest.mark.parametrize("text", ["", "python_info 1.0\n", "<html>", "a{b=\n"])
def test_malformed_counters_are_refused(text: str) -> None:
    with pytest.raises(DataError, match="gives no counters"):
        read(text, "http://127.0.0.1:8000")


@pytest.mark.parametrize("url", ["file:///metrics", "models:/clozeline-encoder@champion"])
def test_what_is_no_url_of_a_server_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(ParamsError, match=f"{url} is not the URL of a server") as caught:
        ask(url)
    assert "CLOZELINE_SERVER=http://" in caught.value.do


def test_traffic_counts_can_be_added_and_subtracted() -> None:
    first = Traffic(texts_by_length={"4.0": 1, "8.0": 2}, answers_by_confidence={"1.0": 3}, tokens=9, unknown_tokens=1)
    more = Traffic(texts_by_length={"4.0": 5, "8.0": 2}, answers_by_confidence={"1.0": 3}, tokens=20, unknown_tokens=1)
    came = more.since(first)
    assert (came.num_texts, came.num_answers, came.tokens, came.unknown_rate) == (4, 0, 11, 0.0)
    assert first.plus(came) == more


def test_after_a_restart_all_counts_are_new_traffic() -> None:
    before = Traffic(texts_by_length={"4.0": 10}, tokens=40)
    after = Traffic(texts_by_length={"4.0": 2}, tokens=8)
    assert after.since(before) == after


BOUNDS = ["4.0", "8.0", "16.0", "32.0", "64.0", "+Inf"]
counts = st.fixed_dictionaries(dict.fromkeys(BOUNDS, st.integers(0, 10_000)))


@given(counts, counts)
def test_the_stability_index_is_symmetric_and_never_negative(ours: dict[str, int], theirs: dict[str, int]) -> None:
    index = stability_index(ours, theirs)
    assert index >= 0
    assert index == pytest.approx(stability_index(theirs, ours))
    assert stability_index(ours, ours) == 0


def test_the_stability_index_follows_the_published_formula() -> None:
    """Shares of 0.9 and 0.1 against 0.5 and 0.5, with counts so large that half a count does not matter."""
    index = stability_index({"a": 9_000_000, "b": 1_000_000}, {"a": 5_000_000, "b": 5_000_000})
    assert index == pytest.approx(-0.4 * math.log(5 / 9) + 0.4 * math.log(5), rel=1e-5)


def drawn(seed: int, mean: float) -> dict[str, int]:
    generator = random.Random(seed)
    lengths = [generator.expovariate(1 / mean) for _ in range(1_000)]
    found = dict.fromkeys(BOUNDS, 0)
    for length in lengths:
        found[next(bound for bound in BOUNDS if length <= float(bound))] += 1
    return found


@pytest.mark.parametrize("seed", range(20))
def test_sampling_noise_is_not_drift_but_a_change_in_length_is(seed: int) -> None:
    reference = drawn(1000, mean=12)
    limit = DriftLimits().max_index
    assert stability_index(reference, drawn(seed, mean=12)) < limit / 3
    assert stability_index(reference, drawn(seed, mean=40)) > 2 * limit


def test_each_figure_says_whether_it_is_drift() -> None:
    reference = Traffic(texts_by_length={"8.0": 1_000}, tokens=8_000, unknown_tokens=8)
    now = Traffic(texts_by_length={"8.0": 1_000}, tokens=8_000, unknown_tokens=400)
    length, unknown = shifts(reference, now, DriftLimits())
    assert (length.is_passed, unknown.is_passed) == (True, False)
    assert unknown.given == pytest.approx(0.049)
    assert str(unknown) == "unknown_increase is 0.0490, at most 0.01: NO"


def test_confidence_is_compared_only_with_enough_answers() -> None:
    def of(confidences: dict[str, int]) -> Traffic:
        return Traffic(texts_by_length={"8.0": 1_000}, answers_by_confidence=confidences)

    sure, unsure = of({"0.5": 100, "1.0": 900}), of({"0.5": 900, "1.0": 100})
    assert [shift.is_passed for shift in shifts(sure, unsure, DriftLimits())] == [True, True, False]
    assert len(shifts(sure, of({"0.5": 10}), DriftLimits())) == 2


def test_unset_limits_keep_their_defaults() -> None:
    assert DriftLimits.of({"max_index": 0.3}) == DriftLimits(max_index=0.3)


@pytest.mark.parametrize("given", [{"max_indexes": 0.3}, {"max_index": "0.3"}, {"max_index": -1}, {"min_texts": True}])
def test_a_limit_that_cannot_be_used_is_refused_by_name(given: dict[str, object]) -> None:
    with pytest.raises(ParamsError) as caught:
        DriftLimits.of(given)
    assert f"{next(iter(given))}: " in caught.value.problem
    assert "max_unknown_increase" in caught.value.problem


LIMITS = DriftLimits(min_texts=100)
URL, OTHER = "http://a:8000", "http://b:8000"


def counted(short: int, long: int, sha256: str = "1") -> dict[str, Served]:
    """Return the counts of a server that got so many short and long texts since it started."""
    lengths = {"8.0": short, "64.0": long}
    traffic = Traffic(texts_by_length=lengths, tokens=8 * short + 64 * long)
    return {"encoder": Served(version=sha256, sha256=sha256, traffic=traffic)}


def looked(*servers: dict[str, Served]) -> list[Verdict]:
    """Poll the servers in order, and return the verdicts."""
    watch, said = DriftState(), []
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
    watch, _ = DriftState().look({URL: counted(150, 0), OTHER: counted(50, 0)}, LIMITS)
    assert watch.models["encoder"].reference.num_texts == 200
    watch, [waits] = watch.look({URL: counted(180, 0), OTHER: counted(20, 0)}, LIMITS)  # the second restarted
    assert waits.waits_for == "50 of 100 texts since the last comparison"
    _, [verdict] = watch.look({URL: counted(180, 0), OTHER: counted(20, 40), "http://c:8000": counted(0, 30)}, LIMITS)
    assert (verdict.num_texts, verdict.is_drift) == (120, True)


def test_nothing_is_compared_while_replicas_serve_two_versions() -> None:
    before, _ = DriftState().look({URL: counted(200, 0), OTHER: counted(0, 0)}, LIMITS)
    after, [verdict] = before.look({URL: counted(200, 500, "2"), OTHER: counted(0, 500)}, LIMITS)
    assert (after, verdict.version, verdict.num_texts) == (before, "1 and 2", 0)


def test_the_watch_is_restored_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "drift" / "server.json"
    watch, _ = DriftState.read(file, absent=DriftState()).look({URL: counted(200, 0)}, LIMITS)
    watch.write(file)
    assert DriftState.read(file) == watch
    file.write_text("{", encoding="utf-8")
    with pytest.raises(ArtifactError, match=r"server\.json cannot be used"):
        DriftState.read(file)


def scored(right: int, wrong: int) -> dict[str, Served]:
    """Return the counts of a server that got no other texts than those that feedback has scored."""
    return {"library": Served(version="1", sha256="1", traffic=Traffic(right=right, wrong=wrong))}


def test_an_increase_of_wrong_answers_is_drift_once_enough_are_scored() -> None:
    first, few, worse, as_before = looked(scored(180, 20), scored(280, 70), scored(330, 120), scored(510, 140))
    assert not first.shifts
    assert not few.shifts
    assert worse.is_drift
    assert "wrong_increase is 0.3000, at most 0.1: NO" in str(worse)
    assert not as_before.is_drift
