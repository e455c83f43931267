"""The exam of a fine-tuned model uses the metric of its task, on items that training held out."""

import numpy as np
import pytest

from clozeline.exporting.exams import UNKNOWN, Answers, Exam, Sample, exam_of
from clozeline.exporting.ladder import ratio_of_figures
from clozeline.exporting.task_exams import correlation_with
from clozeline.inference.language import Embedder
from clozeline.records.finetune.scored_items import EntitySpan, HeldOut, by_vectors, f1, ranked, spearman
from clozeline.records.finetune.statistics import bootstrap_interval
from clozeline.tasks.classification.scores import SET_FIGURES
from clozeline.tasks.tagging.sentences import score
from tests.exporting.conftest import TEXTS, Opened, asked, said, sample_of
from tests.make import packages
from tests.make.packages import TAGS, TOPICS

WORDS = ["list", "file", "open", "return", "of", *"abcdefghijklmnop"]


def test_micro_f1_of_label_sets_equals_that_of_the_task(opened: Opened) -> None:
    labels = [("sport",), ("money", "travel"), (), ("health", "sport")]
    model = opened(packages.write_topics)
    items = [HeldOut(text=text, right=right) for text, right in zip(TEXTS, labels, strict=True)]
    exam, given = asked(model, sample_of(TEXTS, items))
    assert (exam.metric, exam.counts(given, given).num_items, exam.num_texts) == ("micro F1", 5, 4)
    actual_TC = np.array([[label in right for label in TOPICS] for right in labels])
    said_TC = given.top1_A.reshape(4, len(TOPICS)).astype(bool)
    assert exam.counts(given, given).value == pytest.approx(SET_FIGURES["micro_f1"](actual_TC, said_TC))
    probability = [{one.label: one.score for one in scores} for scores in model.classify(TEXTS, top_k=9)]
    assert said_TC.tolist() == [[of_text[label] > 0.4 for label in TOPICS] for of_text in probability]
    assert 0 < said_TC.mean() < 1
    assert exam.counts(said(actual_TC.ravel()), given).value == 1


def test_labels_that_neither_graph_gives_do_not_count_as_agreement(opened: Opened) -> None:
    exam = exam_of(opened(packages.write_topics), Sample(TEXTS, ["sport", "news", None, None]))
    assert (exam.metric, exam.is_agreement) == ("label agreement", True), "single labels say nothing about the others"
    one, other = np.zeros(16), np.zeros(16)
    one[[0, 5]], other[[5, 6]] = 1, 1
    assert np.flatnonzero(exam.matters(said(one), said(other))).tolist() == [0, 5, 6]
    assert exam.matters(said(0 * one), said(0 * other)).all()
    assert exam.counts(said(other), said(one)).value == 0.5


def test_the_exam_of_a_single_score_compares_neighbours_and_knows_the_order_of_scored_pairs(opened: Opened) -> None:
    model = opened(packages.write_ranker)
    given = asked(model, sample_of(TEXTS))[1]
    halves = [("the list", "of files"), ("return a", "b c"), ("open the", "file é"), ("of the", "opened lists")]
    scores = [best.score for (best,) in model.classify(halves)]
    assert given.top1_A.tolist() == [scores[n] > scores[n - 1] for n in range(4)]
    pairs = [
        HeldOut(text=text, second="a file", score=of) for text, of in zip(TEXTS, (0.5, 0.9, 0.9, 0.1), strict=True)
    ]
    scored = exam_of(model, sample_of((), pairs))
    assert scored.true_A.tolist() == [1, 1, UNKNOWN, 0], "each beside the one before it, the first beside the last"
    assert (scored.metric, scored.is_agreement) == ("order accuracy", False)
    assert scored.counts(said(np.array([1, 0, 1, 0])), said(np.zeros(4))).value == pytest.approx(2 / 3)


def test_the_exam_of_a_pair_classifier_uses_the_held_out_pairs(opened: Opened) -> None:
    pairs = [("the list", "a b c", "numpy"), ("é", "of", "torch")]
    items = [HeldOut(text=text, second=second, right=(right,)) for text, second, right in pairs]
    exam, given = asked(opened(packages.write_classifier), Sample(TEXTS, ["numpy"] * 4, items))
    assert (exam.metric, exam.num_texts, exam.true_A.tolist()) == ("accuracy", 2, [1, 0])
    assert exam.counts(given, given).num_items == 2
    assert [len(text) for text in exam.texts] == [8, 5]


@pytest.mark.parametrize(
    ("labels", "metric", "num_items"),
    [(["numpy", "torch", None], "accuracy", 2), (["numpy", "cobol", None], "label agreement", 3)],
)
def test_a_classifier_is_judged_by_labels_if_half_of_the_texts_have_a_known_one(
    opened: Opened, labels: list[str | None], metric: str, num_items: int
) -> None:
    model = opened(packages.write_classifier)
    exam, given = asked(model, Sample(TEXTS[:3], labels))
    named = [best.label for (best,) in model.classify(TEXTS[:3])]
    right = [name == label for name, label in zip(named, labels, strict=True) if label in model.manifest.labels]
    counts = exam.counts(given, given)
    assert (exam.metric, counts.num_items) == (metric, num_items)
    assert counts.value == (np.mean(right) if metric == "accuracy" else 1)


def test_entity_f1_equals_that_of_the_task(opened: Opened) -> None:
    """Each whitespace word has the tag of its first token; an entity is right if its type and both ends are."""
    items = [
        HeldOut(text="the lists, of files", entities=(EntitySpan(start=4, end=13, type="PER"),)),
        HeldOut(text="return a b c", entities=(EntitySpan(start=7, end=8, type="LOC"),)),
        HeldOut(text="open é"),
        HeldOut(text="RETURN  a b c"),  # has the tokens of an earlier one
    ]
    exam, given = asked(opened(packages.write_tagger), sample_of(TEXTS, items))
    true = [["O", "B-PER", "I-PER", "O"], ["O", "B-LOC", "O", "O"], ["O", "O"]]
    assert (exam.metric, exam.counts(given, given).num_items, exam.num_texts) == ("entity F1", 2, 3)
    names = [TAGS[place] for place in given.top1_A]
    words = [one.tolist() for one in np.split(np.array(names), [4, 8])]
    assert exam.counts(given, given).value == pytest.approx(score(true, words).f1)
    assert exam.counts(said(np.array([TAGS.index(tag) for tags in true for tag in tags])), given).value == 1


def test_words_outside_entities_in_both_graphs_do_not_count_as_agreement(opened: Opened) -> None:
    exam = exam_of(opened(packages.write_tagger), sample_of(TEXTS))
    assert exam.metric == "entity agreement"
    one, other = np.zeros(len(exam.text_A)), np.zeros(len(exam.text_A))
    one[:2], other[:3] = (1, 2), (1, 4, 3)
    assert np.flatnonzero(exam.matters(said(one), said(other))).tolist() == [0, 1, 2]
    # One entity of two words against two of one word and of another type: none in common.
    assert exam.counts(said(other), said(one)).value == 0
    assert exam.counts(said(one), said(one)).value == 1


def test_answer_f1_follows_squad_and_counts_answers_inside_the_window(opened: Opened) -> None:
    model = opened(packages.write_answerer)
    items = [
        HeldOut(text="open", second="the list of files", right=("list of files", "files")),
        HeldOut(text="list", second="a b c d " * 40 + "the end", right=("the end",)),
        HeldOut(text="file", second="return a", right=()),
        HeldOut(text="OPEN", second="the  list of files", right=()),  # has the tokens of the first
    ]
    exam, given = asked(model, sample_of(TEXTS, items))
    counts = exam.counts(given, given)
    assert (exam.metric, exam.num_texts, counts.num_items) == ("answer F1", 3, 3)
    (best,) = model.ask([("open", "the list of files")])[0]
    assert counts.part_T[0] == f1(("list of files", "files"), best.answer)
    assert exam.counts(said(np.full(3, -1)), given).part_T.tolist() == [0, 1, 1]
    made_of_texts, given = asked(model, sample_of(TEXTS))
    assert made_of_texts.metric == "answer agreement"
    assert made_of_texts.counts(said(np.where(np.arange(4) == 0, -1, given.top1_A)), given).value == 0.75


@pytest.fixture(scope="module")
def model(opened: Opened) -> Embedder:
    model = opened(packages.write_embedder)
    assert isinstance(model, Embedder)
    return model


def drawn(num: int) -> list[str]:
    random = np.random.default_rng(0)
    return [" ".join(random.choice(WORDS, size=5)) for _ in range(num)]


def scored(model: Embedder, num: int, noise: float = 0.0) -> list[HeldOut]:
    """Return scores that follow the cosines of `model`, with some noise."""
    firsts, seconds = drawn(2 * num)[::2], drawn(2 * num)[1::2]
    cosine_N = (model.embed(firsts) * model.embed(seconds)).sum(axis=1)
    score_N = cosine_N + noise * np.random.default_rng(1).normal(size=num)
    return [HeldOut(text=a, second=b, score=s) for a, b, s in zip(firsts, seconds, score_N.tolist(), strict=True)]


def pairs_of(cosine_A: np.ndarray) -> Answers:
    """Return pairs of two-dimensional vectors with these cosines."""
    first_A2 = np.stack([np.ones_like(cosine_A), np.zeros_like(cosine_A)], axis=1)
    second_A2 = np.stack([cosine_A, np.sqrt(1 - cosine_A**2)], axis=1)
    embeddings_TH = np.stack([first_A2, second_A2], axis=1).reshape(-1, 2).astype(np.float32)
    return Answers(np.zeros(len(cosine_A), dtype=np.int64), embeddings_TH)


def test_a_repeated_second_half_is_one_search_candidate(model: Embedder) -> None:
    """Rounding would decide which of two equal halves is nearer: even a correct graph would not agree with itself."""
    exam = exam_of(model, sample_of(["return the list", "open the list", "a b", "é b", "c d"]))
    halves = model.tokenize(["return", "the list", "a", "b", "c", "d"])
    assert [text.ids_L.tolist() for text in exam.texts] == [text.ids_L.tolist() for text in halves]
    assert exam.true_A.tolist() == [0, 1, 2]


def test_scored_pairs_are_judged_by_the_correlation_of_the_task(model: Embedder) -> None:
    items = scored(model, 60, noise=0.2)
    exam, given = asked(model, sample_of(TEXTS, items))
    assert (exam.metric, exam.num_texts, len(exam.texts)) == ("Spearman correlation", 60, 120)
    firsts_NH, seconds_NH = model.embed([it.text for it in items]), model.embed([str(it.second) for it in items])
    cosine_N = (firsts_NH * seconds_NH).sum(axis=1).astype(np.float64)
    expected = spearman(np.array([it.score for it in items]), cosine_N)
    assert 0.5 < expected < 0.99
    counts = exam.counts(given, given)
    assert (counts.value, counts.num_items) == (pytest.approx(expected), 60)
    assert given.top1_A.tolist() == [int(cosine_N[n] > cosine_N[n - 1]) for n in range(60)]


def scores_alone(score_A: np.ndarray) -> Exam:
    number_A, count = np.arange(len(score_A)), correlation_with(score_A.astype(np.float64))
    return Exam(texts=[], text_A=number_A, true_A=number_A, metric="Spearman correlation", count=count)


def test_the_interval_of_a_correlation_equals_that_of_a_bootstrap() -> None:
    random = np.random.default_rng(0)
    score_A = random.uniform(-1, 1, size=300)
    fp32_A, int8_A = (np.clip(score_A + random.normal(size=300) * of, -1, 1) * 0.9 for of in (0.5, 0.7))
    exam = scores_alone(score_A)
    fp32, int8 = pairs_of(fp32_A), pairs_of(int8_A)
    measured = ratio_of_figures(exam.counts(int8, fp32), exam.counts(fp32, fp32))
    assert measured.value == pytest.approx(spearman(score_A, int8_A) / spearman(score_A, fp32_A), abs=1e-3)
    low, high = bootstrap_interval(lambda n: spearman(score_A[n], int8_A[n]) / spearman(score_A[n], fp32_A[n]), 300)
    assert (measured.low, measured.high) == pytest.approx((low, high), abs=0.15 * (high - low))
    assert measured.num_items == 300


def test_a_negative_or_zero_correlation_counts_as_0() -> None:
    score_A = np.linspace(0, 1, 40)
    exam = scores_alone(score_A)
    with_them, against, alike = (pairs_of(it) for it in (score_A, score_A[::-1], np.full(40, 0.5)))
    for worthless in (against, alike):
        figures = exam.counts(worthless, worthless), exam.counts(with_them, with_them)
        assert [it.value for it in figures] == pytest.approx([0, 1])
        assert ratio_of_figures(*figures).value == ratio_of_figures(figures[0], figures[0]).value == 0


def test_rounding_does_not_break_ties_and_a_single_differently_ranked_pair_widens_the_interval() -> None:
    """For example, each pair of a text and itself has a cosine of 1, up to rounding."""
    cosine_A = np.repeat([0.3, 0.4, 0.8], 20)
    exam = scores_alone(np.repeat([0.2, 0.5, 1.0], 20))
    exact, rounded = pairs_of(cosine_A), pairs_of(cosine_A + np.random.default_rng(0).normal(size=60) * 1e-7)
    assert exam.counts(rounded, exact).value == exam.counts(exact, exact).value == pytest.approx(1)
    exam = scores_alone(np.array([1.0, *[0.0] * 9]))
    one, other = (pairs_of(np.array([0.9, *np.linspace(low, 0.8, 9)])) for low in (0.1, 0.2))
    measured = ratio_of_figures(exam.counts(one, other), exam.counts(other, other))
    assert measured.value == pytest.approx(1)
    assert measured.low < 0.9 < 1.1 < measured.high


def searched(num: int, recall_at: int) -> list[HeldOut]:
    """Return items that look for a text by its first three words."""
    texts = dict.fromkeys(drawn(num))
    return [HeldOut(text=" ".join(text.split()[:3]), right=(text,), recall_at=recall_at) for text in texts]


def test_matching_pairs_are_judged_by_the_recall_of_the_task(model: Embedder) -> None:
    items = searched(80, recall_at=3)
    items[0] = items[0].model_copy(update={"right": (items[4].right[0], items[0].right[0])})
    exam, given = asked(model, sample_of(TEXTS, items))
    counts = exam.counts(given, given)
    assert (exam.metric, counts.num_items, exam.num_texts) == ("recall at 3", len(items), len(items))
    seconds = list(dict.fromkeys(text for item in items for text in item.right))
    belonging = [sorted(seconds.index(text) for text in item.right) for item in items]
    found = ranked(by_vectors(model.embed([it.text for it in items]), model.embed(seconds)), belonging)
    assert 0.1 < found.recall_at(3).mean() < 0.95
    assert counts.value == found.recall_at(3).mean()
    assert given.top1_A.tolist() == found.best_Q.tolist()
    # The comparison of texts read alone and in a batch asks some of the texts.
    few = exam.answers(model, model.batches(exam.texts[:64]))
    assert few.embeddings_TH is not None
    assert (len(few.top1_A), len(few.embeddings_TH)) == (32, 64)
    alike = [HeldOut(text=text, second="a list", score=0.6) for text in TEXTS]
    for of, metric in ((searched(10, 10), "recall at 1"), (alike, "halves found")):
        assert exam_of(model, sample_of(TEXTS, of)).metric == metric, "else any graph would pass"
