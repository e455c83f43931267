"""Exams: their texts, which depend on the text alone, their right answers, and shares with intervals over texts."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozeline.exporting.exams import (
    BEGINNINGS,
    UNKNOWN,
    Answers,
    Counts,
    Exam,
    Sample,
    exam_of,
    hidden_places,
    hide,
    logits,
    per_text,
    ratio,
    read_sample,
    share,
    tokens_exam,
)
from clozeline.exporting.ladder import ratio_of_figures
from clozeline.inference.language import OpenEncoder
from clozeline.inference.open_model import GraphSession, OpenModel, TextBatch
from clozeline.inference.package import load
from clozeline.inference.tokenization import TokenizedText
from clozeline.records.finetune.scored_items import EntitySpan, HeldOut, f1
from clozeline.system.errors import ArtifactError, DataError
from clozeline.tasks.classification.scores import SET_FIGURES
from clozeline.tasks.tagging.sentences import score
from tests.exporting.conftest import TinyPackage
from tests.make.packages import (
    TAGS,
    TOPICS,
    VOCABULARY,
    write_answerer,
    write_classifier,
    write_completer,
    write_embedder,
    write_encoder,
    write_ranker,
    write_tagger,
    write_topics,
)

Writing = Callable[[Path], None]
Opened = Callable[[Writing], OpenModel]
TEXTS = ["the list of files", "return a b c", "open the file é", "of the opened lists"]
SAMPLE = Sample(TEXTS, [None] * len(TEXTS))


@pytest.fixture
def opened(tiny_package: TinyPackage) -> Opened:
    """`opened(write_tagger)` writes the package of that function and opens it."""
    return lambda writing: load(tiny_package(writing))


def said(answers: np.ndarray) -> Answers:
    return Answers(answers.astype(np.int64), None)


@pytest.mark.parametrize("writing", [write_tagger, write_encoder, write_completer, write_embedder])
def test_texts_without_tokens_are_refused(writing: Writing, opened: Opened) -> None:
    with pytest.raises(DataError, match="cannot be compared"):
        exam_of(opened(writing), Sample(["   "], [None]))


REPEATED = ["the list of files", "THE  list of files", "a " * 80, f"{'a ' * 90}b", "open the file é"]
"""Two texts have the tokens of an earlier one: they differ in case and spaces, or only behind the cut."""


@pytest.mark.parametrize(
    "writing", [write_encoder, write_completer, write_embedder, write_classifier, write_tagger, write_answerer]
)
def test_texts_with_the_same_tokens_count_as_one(writing: Writing, opened: Opened) -> None:
    """In a corpus of long texts that begin with the same licence, all texts are the same to the model."""
    model = opened(writing)
    once, again = (exam_of(model, Sample(texts, [None] * len(texts))) for texts in (REPEATED[::2], REPEATED))
    assert [text.ids_L.tolist() for text in again.texts] == [text.ids_L.tolist() for text in once.texts]
    assert again.text_A.tolist() == once.text_A.tolist()
    given = again.answers(model, model.batches(again.texts))
    assert again.counts(given, given).value == once.counts(given, given).value


def test_a_mask_in_the_text_itself_is_answered_but_has_no_label(opened: Opened) -> None:
    """Texts about masked language models contain the mask token."""
    model = opened(write_encoder)
    texts = ["the [MASK] of [MASK] files", "[MASK]", "open the file"]
    exam = exam_of(model, Sample(texts, [None] * 3))
    given = exam.answers(model, model.batches(exam.texts))
    assert exam.text_A.tolist() == [0, 0, 0, 1, 2]
    assert len(given.top1_A) == 5
    the = VOCABULARY.index("the")
    assert exam.true_A.tolist() == [the, UNKNOWN, UNKNOWN, UNKNOWN, the]
    assert (exam.counts(given, given).num_items, exam.num_texts) == (2, 3)
    assert exam.counts(given, given).whole_T.tolist() == [1, 0, 1]


def test_the_perplexity_of_an_encoder_is_over_its_masked_tokens(opened: Opened) -> None:
    model = opened(write_encoder)
    texts = ["the [MASK] of [MASK] files", "return a b c of the lists", "open the file"]
    exam = exam_of(model, Sample(texts, [None] * 3))
    given = exam.answers(model, model.batches(exam.texts))
    losses = []
    for place, text in enumerate(exam.texts):
        (logits_MV,) = logits(model, [text])
        for true, scores_V in zip(exam.true_A[exam.text_A == place], logits_MV.astype(np.float64), strict=True):
            if true != UNKNOWN:
                losses.append(np.log(np.exp(scores_V).sum()) - scores_V[true])
    found = exam.quality(model, given)
    assert found["perplexity"].value == pytest.approx(np.exp(np.mean(losses)), rel=1e-5)
    assert found["perplexity"].low <= found["perplexity"].value <= found["perplexity"].high
    assert found["top1"].value == pytest.approx(exam.counts(given, given).value)
    assert found["perplexity"].num_items == found["top1"].num_items == len(losses)


def test_a_causal_model_predicts_a_few_tokens_of_each_text_from_those_before(opened: Opened) -> None:
    model = opened(write_completer)
    texts = ["return a b c of the lists and a b c d e f g h i j", "open", "a b c of the file"]
    exam = exam_of(model, Sample(texts, [None] * 3))
    given = exam.answers(model, model.batches(exam.texts))
    assert exam.metric == "next-token accuracy"
    assert exam.num_texts == 3
    read = model.tokenize(texts)
    for text, number, true in zip(exam.texts, exam.text_A, exam.true_A, strict=True):
        whole_L = read[number].ids_L
        assert text.ids_L.tolist() == whole_L[: len(text)].tolist()
        assert true == whole_L[len(text)]
    assert [int((exam.text_A == number).sum()) for number in range(3)] == [BEGINNINGS, 1, 1]
    losses, right = [], []
    for text, true, first in zip(exam.texts, exam.true_A, given.top1_A, strict=True):
        ((scores_V,),) = logits(model, [text])
        losses.append(np.log(np.exp(scores_V.astype(np.float64)).sum()) - scores_V[true])
        right.append(first == true == scores_V.argmax())
    found = exam.quality(model, given)
    assert found["perplexity"].value == pytest.approx(np.exp(np.mean(losses)), rel=1e-5)
    assert (found["perplexity"].num_texts, found["perplexity"].num_items) == (3, len(losses))
    assert exam.counts(given, given).value == pytest.approx(np.mean(right))


def test_items_with_the_same_tokens_get_the_labels_of_the_first(opened: Opened) -> None:
    tagger, answerer = opened(write_tagger), opened(write_answerer)
    spans = [(EntitySpan(start=0, end=size, type="PER"),) for size in (3, 8, 3, 5, 4)]
    sentences = [HeldOut(text=text, entities=of) for text, of in zip(REPEATED, spans, strict=True)]
    tags = exam_of(tagger, Sample(TEXTS, [None] * 4, sentences))
    first = np.searchsorted(tags.text_A, np.arange(3))
    tag_A = np.full(len(tags.text_A), TAGS.index("O"))
    tag_A[first], tag_A[first[1] + 1] = TAGS.index("B-PER"), TAGS.index("I-PER")
    assert (tags.counts(said(tag_A), said(tag_A)).value, tags.counts(said(tag_A), said(tag_A)).num_items) == (1, 3)
    rights = ("list", "files", "a", "b", "file")
    questions = [
        HeldOut(text="open", second=text, right=(right,)) for text, right in zip(REPEATED, rights, strict=True)
    ]
    reading = exam_of(answerer, Sample(TEXTS, [None] * 4, questions))
    spans = said(np.array([start << 32 | end for start, end in ((4, 8), (0, 1), (9, 13))]))
    assert reading.counts(spans, spans).part_T.tolist() == [1, 1, 1]


def test_a_repeated_second_half_is_one_search_candidate(opened: Opened) -> None:
    """Rounding would decide which of two equal halves is nearer: even a correct graph would not agree with itself."""
    model = opened(write_embedder)
    texts = ["return the list", "open the list", "a b", "é b", "c d"]
    exam = exam_of(model, Sample(texts, [None] * 5))
    assert [text.ids_L.tolist() for text in exam.texts] == [
        text.ids_L.tolist() for text in model.tokenize(["return", "the list", "a", "b", "c", "d"])
    ]
    assert exam.true_A.tolist() == [0, 1, 2]


def test_micro_f1_of_label_sets_equals_that_of_the_task(opened: Opened) -> None:
    labels = [("sport",), ("money", "travel"), (), ("health", "sport")]
    items = [HeldOut(text=text, right=right) for text, right in zip(TEXTS, labels, strict=True)]
    model = opened(write_topics)
    exam = exam_of(model, Sample(TEXTS, [None] * 4, items))
    given = exam.answers(model, model.batches(exam.texts))
    assert (exam.metric, exam.counts(given, given).num_items, exam.num_texts) == ("micro F1", 5, 4)
    actual_TC = np.array([[label in right for label in TOPICS] for right in labels])
    said_TC = given.top1_A.reshape(4, len(TOPICS)).astype(bool)
    assert exam.counts(given, given).value == pytest.approx(SET_FIGURES["micro_f1"](actual_TC, said_TC))
    probability = [{one.label: one.score for one in scores} for scores in model.classify(TEXTS, top_k=9)]
    assert said_TC.tolist() == [[of_text[label] > 0.4 for label in TOPICS] for of_text in probability]
    assert 0 < said_TC.mean() < 1
    assert exam.counts(said(actual_TC.ravel()), given).value == 1


def test_labels_that_neither_graph_gives_do_not_count_as_agreement(opened: Opened) -> None:
    exam = exam_of(opened(write_topics), SAMPLE)
    assert (exam.metric, exam.is_agreement) == ("label agreement", True)
    one, other = np.zeros(16), np.zeros(16)
    one[[0, 5]], other[[5, 6]] = 1, 1
    assert np.flatnonzero(exam.matters(said(one), said(other))).tolist() == [0, 5, 6]
    assert exam.matters(said(0 * one), said(0 * other)).all()
    assert exam.counts(said(other), said(one)).value == 0.5
    assert (exam.counts(said(one), said(one)).num_items, exam.counts(said(0 * one), said(0 * one)).num_items) == (2, 0)


def test_a_multi_label_model_is_not_judged_by_single_labels(opened: Opened) -> None:
    """One known label of a text says nothing about other texts, nor about its other labels."""
    exam = exam_of(opened(write_topics), Sample(TEXTS, ["sport", "news", None, None]))
    assert exam.metric == "label agreement"


@pytest.mark.parametrize(("threshold", "is_given"), [(0.0, True), (1.0, False)])
def test_every_label_scores_above_0_and_none_above_1(threshold: float, is_given: bool, opened: Opened) -> None:
    model = opened(write_topics)
    model.manifest = model.manifest.model_copy(update={"decision_threshold": threshold})
    exam = exam_of(model, SAMPLE)
    assert (exam.answers(model, model.batches(exam.texts)).top1_A == is_given).all()


def test_the_exam_of_a_single_score_compares_neighbouring_texts(opened: Opened) -> None:
    model = opened(write_ranker)
    exam = exam_of(model, SAMPLE)
    assert all(text.types_L is not None for text in exam.texts)
    given = exam.answers(model, model.batches(exam.texts)).top1_A
    halves = [("the list", "of files"), ("return a", "b c"), ("open the", "file é"), ("of the", "opened lists")]
    scores = [best.score for (best,) in model.classify(halves)]
    assert given.tolist() == [scores[n] > scores[n - 1] for n in range(4)]
    assert set(given.tolist()) == {0, 1}


def test_the_exam_of_a_single_score_knows_the_order_of_pairs_with_scores(opened: Opened) -> None:
    model = opened(write_ranker)
    scores = [0.5, 0.9, 0.9, 0.1]
    items = [HeldOut(text=text, second="a file", score=score) for text, score in zip(TEXTS, scores, strict=True)]
    exam = exam_of(model, Sample((), (), held_out=items))
    assert exam.true_A.tolist() == [1, 1, UNKNOWN, 0], "each beside the one before it, the first beside the last"
    assert (exam.metric, exam.is_agreement) == ("order accuracy", False)
    assert exam.counts(said(np.array([1, 0, 1, 0])), said(np.zeros(4))).value == pytest.approx(2 / 3)
    unscored = exam_of(model, Sample((), (), held_out=[HeldOut(text=text, second="a file") for text in TEXTS]))
    assert unscored.is_agreement


def test_the_exam_of_a_pair_classifier_uses_the_held_out_pairs(opened: Opened) -> None:
    model = opened(write_classifier)
    pairs = [
        HeldOut(text="the list", second="a b c", right=("numpy",)),
        HeldOut(text="é", second="of", right=("torch",)),
    ]
    exam = exam_of(model, Sample(TEXTS, ["numpy"] * 4, pairs))
    assert (exam.metric, exam.num_texts, exam.true_A.tolist()) == ("accuracy", 2, [1, 0])
    assert exam.counts(*[exam.answers(model, model.batches(exam.texts))] * 2).num_items == 2
    assert [len(text) for text in exam.texts] == [8, 5]


def test_entity_f1_equals_that_of_the_task(opened: Opened) -> None:
    """Each whitespace word has the tag of its first token; an entity is right if its type and both ends are."""
    model = opened(write_tagger)
    items = [
        HeldOut(text="the lists, of files", entities=(EntitySpan(start=4, end=13, type="PER"),)),
        HeldOut(text="return a b c", entities=(EntitySpan(start=7, end=8, type="LOC"),)),
        HeldOut(text="open é"),
    ]
    exam = exam_of(model, Sample(TEXTS, [None] * 4, items))
    true = [["O", "B-PER", "I-PER", "O"], ["O", "B-LOC", "O", "O"], ["O", "O"]]
    given = exam.answers(model, model.batches(exam.texts))
    assert (exam.metric, exam.counts(given, given).num_items, exam.num_texts) == ("entity F1", 2, 3)
    names = [TAGS[place] for place in given.top1_A]
    words = np.split(np.array(names), [4, 8])
    assert exam.counts(given, given).value == pytest.approx(score(true, [one.tolist() for one in words]).f1)
    assert exam.counts(said(np.array([TAGS.index(tag) for tags in true for tag in tags])), given).value == 1
    tokens = model.tag(["the lists, of files"], strategy="none", ignored=())[0]
    assert names[:4] == [one.entity for one in tokens if one.start in (0, 4, 11, 14)]


def test_words_outside_entities_in_both_graphs_do_not_count_as_agreement(opened: Opened) -> None:
    exam = exam_of(opened(write_tagger), SAMPLE)
    assert exam.metric == "entity agreement"
    one, other = np.zeros(len(exam.text_A)), np.zeros(len(exam.text_A))
    one[:2], other[:3] = (1, 2), (1, 4, 3)
    assert np.flatnonzero(exam.matters(said(one), said(other))).tolist() == [0, 1, 2]
    # One entity of two words against two of one word and of another type: none in common.
    assert exam.counts(said(other), said(one)).value == 0
    assert exam.counts(said(one), said(one)).value == 1
    assert (exam.counts(said(one), said(one)).num_items, exam.counts(said(0 * one), said(0 * one)).num_items) == (1, 0)


def test_answer_f1_follows_squad_and_counts_answers_inside_the_window(opened: Opened) -> None:
    model = opened(write_answerer)
    long = "a b c d " * 40 + "the end"
    items = [
        HeldOut(text="open", second="the list of files", right=("list of files", "files")),
        HeldOut(text="list", second=long, right=("the end",)),
        HeldOut(text="file", second="return a", right=()),
    ]
    exam = exam_of(model, Sample(TEXTS, [None] * 4, items))
    assert (exam.metric, exam.num_texts) == ("answer F1", 3)
    given = exam.answers(model, model.batches(exam.texts))
    assert exam.counts(given, given).num_items == 3
    (best,) = model.ask([("open", "the list of files")])[0]
    counts = exam.counts(given, given)
    assert counts.part_T[0] == f1(("list of files", "files"), best.answer)
    nothing = said(np.full(3, -1))
    assert exam.counts(nothing, given).part_T.tolist() == [0, 1, 1]


def test_questions_are_made_from_texts_if_there_are_none(opened: Opened) -> None:
    model = opened(write_answerer)
    exam = exam_of(model, SAMPLE)
    assert exam.metric == "answer agreement"
    given = exam.answers(model, model.batches(exam.texts))
    assert exam.counts(given, given).value == 1
    other = said(np.where(np.arange(4) == 0, -1, given.top1_A))
    assert exam.counts(other, given).value == 0.75


SPECIALS = (0, 1, 2, 3, 4)
SENTENCES = ["the encoder reads a sentence and fills in the word", "small models answer quickly", "a " * 200]


@given(st.lists(st.integers(0, 60), min_size=1, max_size=80))
def test_one_token_in_seven_is_masked_deterministically_and_never_a_special_one(ids: list[int]) -> None:
    ids_L = np.array(ids, dtype=np.int64)
    places = hidden_places(ids_L, SPECIALS)
    num_ordinary = sum(token_id not in SPECIALS for token_id in ids)
    assert len(places) == np.ceil(0.15 * num_ordinary)
    assert not np.isin(ids_L[places], SPECIALS).any()
    assert (places == hidden_places(ids_L.copy(), SPECIALS)).all()


def test_masked_positions_differ_between_texts_and_cover_the_row() -> None:
    places = [hidden_places(np.arange(60) + shift, ()) for shift in range(100)]
    counts = np.bincount(np.concatenate(places), minlength=60)
    assert counts.min() > 0
    assert len({tuple(place) for place in places}) == 100


@pytest.fixture(scope="module")
def encoder(encoder_package: Path) -> OpenEncoder:
    opened = load(encoder_package, precision="fp32")
    assert isinstance(opened, OpenEncoder)
    return opened


def tokens_of(texts: Sequence[TokenizedText]) -> Exam:
    """Return an exam of the hidden tokens of these texts, without labels."""
    place_T = np.arange(len(texts))
    return tokens_exam(texts, place_T, np.full(len(texts), UNKNOWN), "agreement", place_T[:, None])


def test_masking_keeps_the_true_ids_and_leaves_other_tokens_unchanged(encoder: OpenEncoder) -> None:
    (text,) = encoder.tokenize(SENTENCES[:1])
    hidden = hide(text, encoder)
    places = hidden_places(text.ids_L, SPECIALS)
    assert (hidden.text.ids_L[places] == 4).all()
    assert (hidden.true_ids_M == text.ids_L[places]).all()
    assert (np.delete(hidden.text.ids_L, places) == np.delete(text.ids_L, places)).all()


def test_answers_equal_those_of_the_encoder_in_text_order(encoder: OpenEncoder) -> None:
    hidden = [hide(text, encoder).text for text in encoder.tokenize(SENTENCES, truncate=True)]
    found = tokens_of(hidden).answers(encoder, encoder.batches(hidden))
    logits, embeddings = (
        {
            position: rows
            for batch, values in encoder.run(hidden, output)
            for position, rows in zip(batch.positions, encoder.split(batch, output, values), strict=True)
        }
        for output in ("logits", "sentence_embedding")
    )
    assert (found.top1_A == np.concatenate([logits[text].argmax(axis=1) for text in range(3)])).all()
    assert found.embeddings_TH is not None
    np.testing.assert_array_equal(found.embeddings_TH, np.stack([embeddings[text] for text in range(3)]))


def test_the_exam_requests_the_same_outputs_as_the_server(
    encoder: OpenEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words and embeddings requested together are computed differently in the last layer than words alone."""
    hidden = [hide(text, encoder).text for text in encoder.tokenize(SENTENCES, truncate=True)]
    asked = set()
    run = GraphSession.run

    def watched(session: GraphSession, batch: TextBatch, *outputs: str) -> object:
        asked.add(outputs)
        return run(session, batch, *outputs)

    monkeypatch.setattr(GraphSession, "run", watched)
    encoder.fill(["the [MASK] reads"])
    encoder.embed(SENTENCES[:1])
    served = asked.copy()
    asked.clear()
    tokens_of(hidden).answers(encoder, encoder.batches(hidden))
    assert asked == served


def test_a_classifier_answers_with_a_label_and_no_embedding(classifier_package: Path) -> None:
    classifier = load(classifier_package)
    texts = classifier.tokenize(SENTENCES, truncate=True)
    exam = Exam(texts=texts, text_A=np.arange(3), true_A=np.full(3, UNKNOWN), metric="agreement")
    found = exam.answers(classifier, classifier.batches(texts))
    assert found.embeddings_TH is None
    labels = [best.label for (best,) in classifier.classify(SENTENCES, truncate=True)]
    assert [classifier.manifest.labels[place] for place in found.top1_A] == labels


def write_texts(path: Path, texts: list[str]) -> Path:
    pq.write_table(pa.table({"text": pa.array(texts, pa.string())}), path)
    return path


def test_the_sample_is_the_same_for_any_order_of_the_rows(tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(50)]
    forward = read_sample(write_texts(tmp_path / "a.parquet", texts), 10)
    backward = read_sample(write_texts(tmp_path / "b.parquet", texts[::-1] + texts[:5]), 10)
    assert forward == backward
    assert len(set(forward.texts)) == 10


def test_all_texts_are_taken_if_there_are_too_few(tmp_path: Path) -> None:
    path = write_texts(tmp_path / "a.parquet", ["one", "two", "", "two"])
    assert sorted(read_sample(path, 10).texts) == ["one", "two"]


@pytest.mark.parametrize("texts", [[], [""], [None]])
def test_a_file_without_a_text_is_refused_by_name(tmp_path: Path, texts: list[str]) -> None:
    path = write_texts(tmp_path / "texts.parquet", texts)
    with pytest.raises(DataError, match="holds no text") as refused:
        read_sample(path, 10)
    assert str(path) in str(refused.value)


def test_texts_keep_their_labels_and_a_text_with_two_labels_has_none(tmp_path: Path) -> None:
    path = tmp_path / "texts.parquet"
    rows = {"text": ["one", "two", "two", "three", "one"], "source": ["a", "b", "c", None, "a"]}
    pq.write_table(pa.table(rows), path)
    sample = read_sample(path, 10, "source")
    assert dict(zip(sample.texts, sample.labels, strict=True)) == {"one": "a", "two": None, "three": None}
    assert set(read_sample(path, 10).labels) == {None}


def test_a_missing_label_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="topic"):
        read_sample(write_texts(tmp_path / "texts.parquet", ["one"]), 10, "topic")


def test_the_two_parts_of_a_sample_share_no_text_and_the_first_stays_the_same(tmp_path: Path) -> None:
    path = write_texts(tmp_path / "texts.parquet", [f"text {number}" for number in range(50)])
    first, second = read_sample(path, 12).parted(8, 4)
    assert first == read_sample(path, 8)
    assert len(second.texts) == 4
    assert not set(first.texts) & set(second.texts)


@pytest.mark.parametrize(("num_texts", "num_first", "num_second"), [(40, 32, 8), (30, 24, 6), (5, 4, 1), (2, 1, 1)])
def test_the_two_parts_share_no_text_in_a_small_sample(num_texts: int, num_first: int, num_second: int) -> None:
    texts = [str(number) for number in range(num_texts)]
    first, second = Sample(texts, [None] * num_texts).parted(32, 8)
    assert [*first.texts, *second.texts] == texts
    assert (len(first.texts), len(second.texts)) == (num_first, num_second)
    assert (len(first.labels), len(second.labels)) == (num_first, num_second)


def test_a_single_text_is_in_both_parts() -> None:
    assert [part.texts for part in Sample(["alone"], [None]).parted(32, 8)] == [["alone"], ["alone"]]


def test_a_share_has_the_interval_of_a_binomial() -> None:
    text_A = np.arange(1000)
    measured = share(text_A % 10 != 0, text_A)
    assert measured.value == 0.9
    assert measured.num_items == 1000
    # One answer a text: the interval of a binomial share.
    assert measured.high - measured.value == pytest.approx(1.96 * np.sqrt(0.9 * 0.1 / 1000), rel=0.01)
    assert measured.value - measured.low == pytest.approx(measured.high - measured.value)


def test_correlated_answers_within_a_text_widen_the_interval() -> None:
    text_A = np.repeat(np.arange(100), 10)
    scattered = share(np.arange(1000) % 10 != 0, text_A)
    together = share(text_A % 10 != 0, text_A)
    assert scattered.value == together.value == 0.9
    assert together.high - together.low > 3 * (scattered.high - scattered.low)
    assert (together.num_items, together.num_texts) == (1000, 100)


def test_texts_without_answers_are_not_counted() -> None:
    assert share(np.array([True, False]), np.array([0, 7])).num_texts == 2
    ours, theirs = f1_counts(*np.array([[1, 0, 0], [1, 1, 0], [1, 0, 0]])), f1_counts(*np.array([[1, 0, 0]] * 3))
    assert ratio_of_figures(ours, theirs).num_texts == 2


def test_full_agreement_gets_the_interval_of_a_single_disagreement() -> None:
    text_A = np.arange(500)
    measured = share(np.ones(500, dtype=bool), text_A)
    assert (measured.value, measured.high) == (1.0, 1.0)
    assert measured.low == pytest.approx(1 - 1.96 / 500, abs=1e-4)


def test_a_ratio_of_paired_counts_has_the_coverage_that_it_claims() -> None:
    random = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        right32_T = random.binomial(20, 0.4, size=200)
        lost_T, won_T = random.binomial(right32_T, 0.04), random.binomial(20 - right32_T, 0.02)
        measured = ratio(right32_T - lost_T + won_T, right32_T, num_items=4000)
        covered += measured.low <= (0.4 * 0.96 + 0.6 * 0.02) / 0.4 <= measured.high
    assert 0.92 < covered / 400 < 0.98


def test_a_ratio_with_denominator_0_is_0() -> None:
    assert ratio(np.array([0, 1]), np.array([0, 0]), num_items=2).value == 0


def test_answers_are_counted_by_text() -> None:
    holds = np.array([True, False, True, True])
    assert per_text(holds, np.array([0, 0, 2, 2])).tolist() == [1, 0, 2]


def f1_counts(right_T: np.ndarray, said_T: np.ndarray, true_T: np.ndarray) -> Counts:
    return Counts(2 * right_T, said_T + true_T)


def test_the_interval_of_a_ratio_of_two_f1_equals_that_of_the_bootstrap() -> None:
    random = np.random.default_rng(0)
    true_T = random.integers(0, 5, size=400)
    theirs_T, their_said_T = random.binomial(true_T, 0.8), true_T + random.integers(0, 2, size=400)
    lost_T = random.binomial(theirs_T, 0.1)
    ours, theirs = (
        f1_counts(theirs_T - lost_T, their_said_T - lost_T // 2, true_T),
        f1_counts(theirs_T, their_said_T, true_T),
    )
    measured = ratio_of_figures(ours, theirs)
    assert measured.value == pytest.approx(ours.value / theirs.value)

    def of(places: np.ndarray) -> float:
        drawn = [Counts(one.part_T[places], one.whole_T[places]) for one in (ours, theirs)]
        return drawn[0].value / drawn[1].value

    drawn = [of(random.integers(400, size=400)) for _ in range(2000)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    assert measured.low == pytest.approx(low, abs=0.1 * (high - low))
    assert measured.high == pytest.approx(high, abs=0.1 * (high - low))


def test_a_ratio_with_equal_totals_is_the_plain_ratio_and_with_divisor_zero_it_is_0() -> None:
    ones = np.ones(6)
    ours, theirs = Counts(np.array([1, 0, 1, 1, 0, 1]), ones), Counts(np.array([1, 1, 1, 1, 0, 1]), ones)
    assert ratio_of_figures(ours, theirs) == ratio(ours.part_T, theirs.part_T, 6)
    nothing = Counts(np.zeros(6), ones + 1)
    assert ratio_of_figures(ours, nothing).high == 0
    assert ratio_of_figures(nothing, ours).value == 0
    assert Counts(np.zeros(2), np.zeros(2)).value == 0
