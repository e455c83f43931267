"""Counters read from a server match the requests it got."""

import math
import re
from collections.abc import Iterator

import httpx
import pytest

from clozeline.orchestration.drift import DriftLimits, DriftState, Served, Traffic, Verdict, ask, read, shifts
from clozeline.records.finetune.statistics import stability_index
from clozeline.registry.sources import parse_sources
from clozeline.serving.access import ApiKeys
from clozeline.serving.loading import open_source
from clozeline.serving.models import Capacity, Catalogue, Service
from clozeline.serving.server import create_app
from clozeline.system.errors import DataError, ParamsError, TransientError
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


def test_lengths_unknown_tokens_confidence_and_feedback_of_each_model_are_read(client: httpx.Client) -> None:
    client.post("/embed", json={"inputs": ["a 漢", "a " * 30]}).raise_for_status()
    answer = client.post("/classify", json={"inputs": ["the list", "open a file"]}).raise_for_status()
    right = [answer.json()[0][0]["label"], "another label"]
    told = {"request_id": answer.headers["x-request-id"], "right": right}
    assert [client.post("/feedback", json=told).status_code for _ in range(2)] == [200, 404], "it is counted once"
    served = ask(str(client.base_url), KEY)
    assert set(served) == {"encoder", "library"}
    card, encoder, library = client.get("/models").json()["models"][0], served["encoder"], served["library"].traffic
    assert (encoder.version, encoder.sha256) == (card["version"], card["sha256"])
    assert {bound: count for bound, count in encoder.traffic.texts_by_length.items() if count} == {"4.0": 1, "32.0": 1}
    assert (encoder.traffic.tokens, encoder.traffic.unknown_tokens, encoder.traffic.num_answers) == (4 + 32, 1, 0)
    assert (library.num_answers, library.right, library.wrong, library.wrong_rate) == (2, 1, 1, 0.5)


def test_what_does_not_answer_is_no_server_or_gives_no_counters_is_refused(client: httpx.Client) -> None:
    refusals = {str(client.base_url): TransientError, "http://127.0.0.1:9": TransientError, "models:/a@b": ParamsError}
    for url, refusal in refusals.items():  # the server refuses a request without the key
        with pytest.raises(refusal, match=re.escape(url)):
            ask(url)
    for text in ("python_info 1.0\n", "a{b=\n"):
        with pytest.raises(DataError, match="gives no counters"):
            read(text, "http://127.0.0.1:8000")


def test_the_stability_index_follows_the_published_formula_with_half_a_count_more_in_each_bucket() -> None:
    expected, actual = (3.5 / 5.5, 1.5 / 5.5, 0.5 / 5.5), (1.5 / 3.5, 0.5 / 3.5, 1.5 / 3.5)
    index = sum((a - e) * math.log(a / e) for e, a in zip(expected, actual, strict=True))
    assert stability_index({"a": 3, "b": 1}, {"a": 1, "c": 1}) == pytest.approx(index)


def test_each_figure_says_whether_it_is_drift_and_confidence_only_with_enough_answers() -> None:
    def shifted(unknown: int, **confidences: dict[str, int]) -> list[bool]:
        both = {"texts_by_length": {"8.0": 1_000}, "tokens": 8_000}
        reference = Traffic(**both, unknown_tokens=8, answers_by_confidence={"0.5": 100, "1.0": 900})
        now = Traffic(**both, unknown_tokens=unknown, **confidences)
        found = shifts(reference, now, DriftLimits())
        assert found[1].given == pytest.approx((unknown - 8) / 8_000)
        return [shift.is_passed for shift in found]

    assert shifted(400) == [True, False]
    assert shifted(8, answers_by_confidence={"0.5": 900, "1.0": 100}) == [True, True, False]
    assert shifted(8, answers_by_confidence={"0.5": 10}) == [True, True]


LIMITS = DriftLimits(min_texts=100)
URL, OTHER = "http://a:8000", "http://b:8000"


def counted(short: int, long: int, sha256: str = "1") -> dict[str, Served]:
    """Return the counts of a server that got so many short and long texts since it started."""
    traffic = Traffic(texts_by_length={"8.0": short, "64.0": long}, tokens=8 * short + 64 * long)
    return {"encoder": Served(version=sha256, sha256=sha256, traffic=traffic)}


def scored(right: int, wrong: int) -> dict[str, Served]:
    """Return the counts of a server that got no other texts than those that feedback has scored."""
    return {"library": Served(version="1", sha256="1", traffic=Traffic(right=right, wrong=wrong))}


ENOUGH = counted(200, 0)  # texts for the reference


def looked(*servers: dict[str, Served]) -> list[Verdict]:
    """Poll the servers in order, and return the verdicts."""
    watch, said = DriftState(), []
    for served in servers:
        watch, verdicts = watch.look({URL: served}, LIMITS)
        said += verdicts
    return said


@pytest.mark.parametrize(
    ("polls", "told", "num_texts", "is_drift"),
    [
        ([counted(60, 0), counted(120, 0)], "120 of 100 texts for the reference", 0, False),
        ([counted(60, 0), counted(120, 0), counted(220, 0)], "", 100, False),
        ([ENOUGH, counted(200, 90), counted(200, 110)], "", 110, True),
        ([ENOUGH, counted(200, 150), counted(350, 150)], "", 150, False),  # each text is compared once
        ([ENOUGH, counted(10, 0), counted(110, 0)], "", 110, False),  # a restarted server keeps its reference
        # Texts before the first poll of a new version may belong to either one.
        ([ENOUGH, counted(200, 50, "2"), counted(200, 200, "2")], "150 of 100 texts for the reference", 0, False),
        ([ENOUGH, *(counted(200, long, "2") for long in (50, 200, 350))], "", 150, False),
    ],
)
def test_later_texts_are_compared_with_the_first_ones_of_the_version(
    polls: list[dict[str, Served]], told: str, num_texts: int, is_drift: bool
) -> None:
    *_, last = looked(*polls)
    assert (last.waits_for, last.num_texts, last.is_drift) == (told, num_texts, is_drift)
    assert last.version == polls[-1]["encoder"].version


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


def test_an_increase_of_wrong_answers_is_drift_once_enough_are_scored() -> None:
    first, few, worse, as_before = looked(scored(180, 20), scored(280, 70), scored(330, 120), scored(510, 140))
    assert not first.shifts
    assert not few.shifts
    assert worse.is_drift
    assert "wrong_increase is 0.3000, at most 0.1: NO" in str(worse)
    assert not as_before.is_drift
