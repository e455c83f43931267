"""Exams: their texts, which depend on the text alone, their right answers, and shares with intervals over texts."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozeline.exporting import exams
from clozeline.exporting.ladder import ratio_of_figures
from clozeline.inference.language import OpenEncoder
from clozeline.inference.open_model import GraphSession, TextBatch
from clozeline.system.errors import ArtifactError, DataError
from tests.exporting.conftest import REPEATED, Opened, asked, sample_of
from tests.make import packages
from tests.make.packages import write_completer, write_encoder

SPECIALS = (0, 1, 2, 3, 4)
SENTENCES = ["the list of files is opened and read and returned", "open a file", "a " * 200]


def nats(scores_V: np.ndarray, true: int) -> float:
    scores_V = scores_V.astype(np.float64)
    loss: float = np.log(np.exp(scores_V).sum()) - scores_V[true]
    return loss


@pytest.mark.parametrize("kind", ["encoder", "completer", "embedder", "classifier", "tagger", "answerer"])
def test_texts_with_the_same_tokens_count_as_one_and_texts_without_tokens_are_refused(
    kind: str, opened: Opened
) -> None:
    """In a corpus of long texts that begin with the same licence, all texts are the same to the model."""
    model = opened(getattr(packages, f"write_{kind}"))
    once = exams.exam_of(model, sample_of(REPEATED[::2]))
    again, given = asked(model, sample_of(REPEATED))
    assert [text.ids_L.tolist() for text in again.texts] == [text.ids_L.tolist() for text in once.texts]
    assert again.text_A.tolist() == once.text_A.tolist()
    assert again.counts(given, given).value == once.counts(given, given).value
    if kind not in ("classifier", "answerer"):
        with pytest.raises(DataError):
            exams.exam_of(model, exams.Sample(["   "], [None]))


def test_an_encoder_predicts_hidden_tokens_and_a_mask_of_the_text_itself_has_no_label(opened: Opened) -> None:
    """Texts about masked language models contain the mask token."""
    model = opened(write_encoder)
    exam, given = asked(model, sample_of(["the [MASK] of [MASK] files", "[MASK]", "open the file"]))
    assert exam.text_A.tolist() == [0, 0, 0, 1, 2]
    the = packages.VOCABULARY.index("the")
    assert exam.true_A.tolist() == [the, exams.UNKNOWN, exams.UNKNOWN, exams.UNKNOWN, the]
    assert (len(given.top1_A), exam.num_texts) == (5, 3)
    assert (exam.counts(given, given).num_items, exam.counts(given, given).whole_T.tolist()) == (2, [1, 0, 1])
    losses = [
        nats(scores_V, true)
        for place, text in enumerate(exam.texts)
        for true, scores_V in zip(exam.true_A[exam.text_A == place], *exams.logits(model, [text]), strict=True)
        if true != exams.UNKNOWN
    ]
    perplexity, top1 = (exam.quality(model, given)[name] for name in ("perplexity", "top1"))
    assert perplexity.value == pytest.approx(np.exp(np.mean(losses)), rel=1e-5)
    assert perplexity.low < perplexity.value < perplexity.high
    assert top1.value == pytest.approx(exam.counts(given, given).value)


def test_a_causal_model_predicts_a_few_tokens_of_each_text_from_those_before(opened: Opened) -> None:
    model = opened(write_completer)
    texts = ["return a b c of the lists and a b c d e f g h i j", "open", "a b c of the file"]
    exam, given = asked(model, sample_of(texts))
    assert (exam.metric, exam.num_texts) == ("next-token accuracy", 3)
    assert np.bincount(exam.text_A).tolist() == [exams.BEGINNINGS, 1, 1]
    read, losses, right = model.tokenize(texts), [], []
    for text, number, true, first in zip(exam.texts, exam.text_A, exam.true_A, given.top1_A, strict=True):
        assert [*text.ids_L, true] == read[number].ids_L[: len(text) + 1].tolist()
        ((scores_V,),) = exams.logits(model, [text])
        losses.append(nats(scores_V, true))
        right.append(first == true == scores_V.argmax())
    perplexity = exam.quality(model, given)["perplexity"]
    assert perplexity.value == pytest.approx(np.exp(np.mean(losses)), rel=1e-5)
    assert exam.counts(given, given).value == pytest.approx(np.mean(right))


@given(st.lists(st.integers(0, 60), min_size=1, max_size=80))
def test_one_token_in_seven_is_masked_deterministically_and_never_a_special_one(ids: list[int]) -> None:
    ids_L = np.array(ids, dtype=np.int64)
    places = exams.hidden_places(ids_L, SPECIALS)
    assert len(places) == np.ceil(0.15 * sum(token_id not in SPECIALS for token_id in ids))
    assert not np.isin(ids_L[places], SPECIALS).any()
    assert (places == exams.hidden_places(ids_L.copy(), SPECIALS)).all()


def test_answers_are_those_of_the_encoder_in_text_order_asked_as_the_server_asks(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words and embeddings requested together are computed differently in the last layer than words alone."""
    encoder = opened(write_encoder)
    assert isinstance(encoder, OpenEncoder)
    requests: set[tuple[str, ...]] = set()
    run = GraphSession.run

    def watched(session: GraphSession, batch: TextBatch, *outputs: str) -> object:
        requests.add(outputs)
        return run(session, batch, *outputs)

    monkeypatch.setattr(GraphSession, "run", watched)
    encoder.fill(["the [MASK] reads"])
    encoder.embed(SENTENCES[:1])
    served = requests.copy()
    requests.clear()
    hidden = [exams.hide(text, encoder)[0] for text in encoder.tokenize(SENTENCES, truncate=True)]
    place_T = np.arange(3)
    exam = exams.tokens_exam(hidden, place_T, np.full(3, exams.UNKNOWN), "agreement", place_T[:, None])
    found = exam.answers(encoder, encoder.batches(exam.texts))
    assert requests == served
    answered = [row_AV.argmax(axis=1) for row_AV in exams.logits(encoder, exam.texts)]
    assert found.top1_A.tolist() == np.concatenate(answered).tolist()


def write_texts(path: Path, texts: list[str | None]) -> Path:
    pq.write_table(pa.table({"text": pa.array(texts, pa.string())}), path)
    return path


def test_the_sample_is_the_same_for_any_order_of_the_rows(tmp_path: Path) -> None:
    texts: list[str | None] = [f"text {number}" for number in range(50)]
    forward = exams.read_sample(write_texts(tmp_path / "a.parquet", texts), 10)
    assert forward == exams.read_sample(write_texts(tmp_path / "b.parquet", texts[::-1] + texts[:5]), 10)
    assert len(set(forward.texts)) == 10
    deciding, calibrating = exams.read_sample(tmp_path / "a.parquet", 12).parted(10, 2)
    assert (deciding, len(calibrating.texts), {*deciding.texts} & {*calibrating.texts}) == (forward, 2, set())
    few = exams.read_sample(write_texts(tmp_path / "few.parquet", ["one", "two", "", "two"]), 10)
    assert sorted(few.texts) == ["one", "two"]


@pytest.mark.parametrize(
    ("texts", "label_field", "named"),
    [([], None, "texts.parquet"), ([None, ""], None, "texts.parquet"), (["one"], "topic", "topic")],
)
def test_a_file_without_texts_or_labels_is_refused(
    texts: list[str | None], label_field: str | None, named: str, tmp_path: Path
) -> None:
    with pytest.raises((DataError, ArtifactError), match=named):
        exams.read_sample(write_texts(tmp_path / "texts.parquet", texts), 10, label_field)


def test_texts_keep_their_labels_and_a_text_with_two_labels_has_none(tmp_path: Path) -> None:
    path = tmp_path / "texts.parquet"
    rows = {"text": ["one", "two", "two", "three", "one"], "source": ["a", "b", "c", None, "a"]}
    pq.write_table(pa.table(rows), path)
    sample = exams.read_sample(path, 10, "source")
    assert dict(zip(sample.texts, sample.labels, strict=True)) == {"one": "a", "two": None, "three": None}
    assert set(exams.read_sample(path, 10).labels) == {None}


def test_a_share_has_the_interval_of_a_binomial_and_correlated_answers_within_a_text_widen_it() -> None:
    text_A = np.arange(1000)
    measured = exams.share(text_A % 10 != 0, text_A)
    assert (measured.value, measured.num_items) == (0.9, 1000)
    # One answer a text: the interval of a binomial share.
    assert measured.high - measured.value == pytest.approx(1.96 * np.sqrt(0.9 * 0.1 / 1000), rel=0.01)
    assert measured.value - measured.low == pytest.approx(measured.high - measured.value)
    together = exams.share(text_A // 10 % 10 != 0, text_A // 10)
    assert (together.value, together.num_items, together.num_texts) == (0.9, 1000, 100)
    assert together.high - together.low > 3 * (measured.high - measured.low)
    # Full agreement gets the interval of a single disagreement.
    full = exams.share(np.ones(500, dtype=bool), np.arange(500))
    assert (full.value, full.high) == (1.0, 1.0)
    assert full.low == pytest.approx(1 - 1.96 / 500, abs=1e-4)


def test_the_interval_of_a_ratio_of_two_f1_equals_that_of_the_bootstrap() -> None:
    random = np.random.default_rng(0)
    true_T = random.integers(0, 5, size=400)
    theirs_T, their_said_T = random.binomial(true_T, 0.8), true_T + random.integers(0, 2, size=400)
    lost_T = random.binomial(theirs_T, 0.1)
    ours = exams.Counts(2 * (theirs_T - lost_T), their_said_T - lost_T // 2 + true_T)
    theirs = exams.Counts(2 * theirs_T, their_said_T + true_T)
    measured = ratio_of_figures(ours, theirs)
    assert measured.value == pytest.approx(ours.value / theirs.value)

    def ratio_at(places: np.ndarray) -> float:
        mine, other = (exams.Counts(one.part_T[places], one.whole_T[places]) for one in (ours, theirs))
        return mine.value / other.value

    low, high = np.quantile([ratio_at(random.integers(400, size=400)) for _ in range(2000)], [0.025, 0.975])
    assert (measured.low, measured.high) == pytest.approx((low, high), abs=0.1 * (high - low))


def test_a_ratio_with_equal_totals_is_the_plain_ratio_and_with_divisor_zero_it_is_0() -> None:
    ones = np.ones(6)
    ours, theirs = exams.Counts(np.array([1, 0, 1, 1, 0, 1]), ones), exams.Counts(np.array([1, 1, 1, 1, 0, 1]), ones)
    assert ratio_of_figures(ours, theirs) == exams.ratio(ours.part_T, theirs.part_T, 6)
    nothing = exams.Counts(np.zeros(6), ones + 1)
    assert ratio_of_figures(ours, nothing).high == ratio_of_figures(nothing, ours).value == 0
    assert exams.ratio(np.array([0, 1]), np.array([0, 0]), num_items=2).value == 0
    assert exams.Counts(np.zeros(2), np.zeros(2)).value == 0
