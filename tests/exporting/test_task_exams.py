"""The exam of a model fine-tuned on pairs uses the metric of its task, on pairs that training held out."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from clozeline.exporting.exams import Answers, Exam, Sample, exam_of
from clozeline.exporting.ladder import Proof, ratio_of_figures
from clozeline.exporting.task_exams import correlation_with
from clozeline.inference.language import Embedder
from clozeline.inference.package import load
from clozeline.records.finetune.scored_items import HeldOut, by_vectors, ranked, spearman
from clozeline.records.finetune.statistics import bootstrap_interval
from clozeline.records.package import FILES, Rung, read_manifest
from tests.exporting.conftest import TinyPackage
from tests.make.models import OPEN
from tests.make.packages import write_embedder

TEXTS = ["the list of files", "return a b c", "open the file é", "of the opened lists"]
WORDS = ["list", "file", "open", "return", "of", *"abcdefghijklmnop"]
METRIC_ALONE = OPEN.but(min_metric_ratio=0.995)


@pytest.fixture(scope="module")
def package(tiny_package: TinyPackage) -> Path:
    return tiny_package(write_embedder)


@pytest.fixture(scope="module")
def model(package: Path) -> Embedder:
    opened = load(package)
    assert isinstance(opened, Embedder)
    return opened


def sample(items: Sequence[HeldOut]) -> Sample:
    return Sample(TEXTS, [None] * len(TEXTS), items)


def drawn(num: int) -> list[str]:
    random = np.random.default_rng(0)
    return [" ".join(random.choice(WORDS, size=5)) for _ in range(num)]


def scored(model: Embedder, num: int, noise: float = 0.0) -> list[HeldOut]:
    """Return scores that follow the cosines of `model`, with some noise."""
    firsts, seconds = drawn(2 * num)[::2], drawn(2 * num)[1::2]
    cosine_N = (model.embed(firsts) * model.embed(seconds)).sum(axis=1)
    score_N = cosine_N + noise * np.random.default_rng(1).normal(size=num)
    return [HeldOut(text=a, second=b, score=s) for a, b, s in zip(firsts, seconds, score_N.tolist(), strict=True)]


def asked(model: Embedder, items: Sequence[HeldOut]) -> tuple[Exam, Answers]:
    exam = exam_of(model, sample(items))
    return exam, exam.answers(model, model.batches(exam.texts))


def pairs_of(cosine_A: np.ndarray) -> Answers:
    """Return pairs of two-dimensional vectors with these cosines."""
    first_A2 = np.stack([np.ones_like(cosine_A), np.zeros_like(cosine_A)], axis=1)
    second_A2 = np.stack([cosine_A, np.sqrt(1 - cosine_A**2)], axis=1)
    embeddings_TH = np.stack([first_A2, second_A2], axis=1).reshape(-1, 2).astype(np.float32)
    return Answers(np.zeros(len(cosine_A), dtype=np.int64), embeddings_TH)


def test_scored_pairs_are_judged_by_the_correlation_of_the_task(model: Embedder) -> None:
    items = scored(model, 60, noise=0.2)
    exam, given = asked(model, items)
    assert exam.metric == "Spearman correlation"
    assert (exam.counts(given, given).num_items, exam.num_texts, len(exam.texts)) == (60, 60, 120)
    firsts_NH, seconds_NH = model.embed([it.text for it in items]), model.embed([str(it.second) for it in items])
    cosine_N = (firsts_NH * seconds_NH).sum(axis=1).astype(np.float64)
    expected = spearman(np.array([it.score for it in items]), cosine_N)
    assert 0.5 < expected < 0.99
    assert exam.counts(given, given).value == pytest.approx(expected)
    assert given.top1_A.tolist() == [int(cosine_N[n] > cosine_N[n - 1]) for n in range(60)]


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


def scores_alone(score_A: np.ndarray) -> Exam:
    number_A, count = np.arange(len(score_A)), correlation_with(score_A.astype(np.float64))
    return Exam(texts=[], text_A=number_A, true_A=number_A, metric="Spearman correlation", count=count)


def test_a_negative_or_zero_correlation_counts_as_0() -> None:
    score_A = np.linspace(0, 1, 40)
    exam = scores_alone(score_A)
    with_them, against, alike = (pairs_of(it) for it in (score_A, score_A[::-1], np.full(40, 0.5)))
    for worthless in (against, alike):
        figures = exam.counts(worthless, worthless), exam.counts(with_them, with_them)
        assert [it.value for it in figures] == pytest.approx([0, 1])
        assert ratio_of_figures(*figures).value == 0
        assert ratio_of_figures(figures[0], figures[0]).value == 0
    assert ratio_of_figures(*[exam.counts(with_them, with_them)] * 2).value == 1


def test_rounding_does_not_break_ties_between_pairs() -> None:
    """For example, each pair of a text and itself has a cosine of 1, up to rounding."""
    score_A = np.repeat([0.2, 0.5, 1.0], 20)
    cosine_A = np.repeat([0.3, 0.4, 0.8], 20)
    noise_A = np.random.default_rng(0).normal(size=60) * 1e-7
    exam = scores_alone(score_A)
    exact, rounded = pairs_of(cosine_A), pairs_of(cosine_A + noise_A)
    assert exam.counts(rounded, exact).value == exam.counts(exact, exact).value == pytest.approx(1)


def test_a_single_differently_ranked_pair_widens_the_interval() -> None:
    exam = scores_alone(np.array([1.0, *[0.0] * 9]))
    one, other = (pairs_of(np.array([0.9, *np.linspace(low, 0.8, 9)])) for low in (0.1, 0.2))
    measured = ratio_of_figures(exam.counts(one, other), exam.counts(other, other))
    assert measured.value == pytest.approx(1)
    assert measured.low < 0.9 < 1.1 < measured.high


def searched(num: int, recall_at: int) -> list[HeldOut]:
    """Return items that look for a text by its first three words."""
    return [
        HeldOut(text=" ".join(text.split()[:3]), right=(text,), recall_at=recall_at)
        for text in dict.fromkeys(drawn(num))
    ]


def test_matching_pairs_are_judged_by_the_recall_of_the_task(model: Embedder) -> None:
    items = searched(80, recall_at=3)
    items[0] = items[0].model_copy(update={"right": (items[4].right[0], items[0].right[0])})
    exam, given = asked(model, items)
    assert (exam.metric, exam.counts(given, given).num_items, exam.num_texts) == ("recall at 3", len(items), len(items))
    seconds = list(dict.fromkeys(text for item in items for text in item.right))
    belonging = [sorted(seconds.index(text) for text in item.right) for item in items]
    found = ranked(by_vectors(model.embed([it.text for it in items]), model.embed(seconds)), belonging)
    assert 0.1 < found.recall_at(3).mean() < 0.95
    assert exam.counts(given, given).value == found.recall_at(3).mean()
    assert given.top1_A.tolist() == found.best_Q.tolist()


def test_a_prefix_of_the_exam_texts_is_a_valid_exam(model: Embedder) -> None:
    """The comparison of texts read alone and in a batch uses only some of the texts."""
    exam, _ = asked(model, searched(80, recall_at=3))
    few = exam.answers(model, model.batches(exam.texts[:64]))
    assert len(few.top1_A) == 32
    assert few.embeddings_TH is not None
    assert len(few.embeddings_TH) == 64


def test_second_texts_with_the_same_tokens_count_as_one(model: Embedder) -> None:
    items = [
        HeldOut(text="the list", right=("list of files", "a b"), recall_at=1),
        HeldOut(text="return", right=("LIST of  files",), recall_at=1),
        HeldOut(text="the file", right=("A b", "open"), recall_at=1),
    ]
    exam, _ = asked(model, items)
    assert len(exam.texts) == 6
    seconds = np.eye(3, dtype=np.float32)
    # The texts are a first one, its two matches, two further first ones, and a match that is new.
    near = [Answers(np.zeros(3, np.int64), np.stack([one, *seconds[:2], one, one, seconds[2]])) for one in seconds]
    assert [exam.counts(each, each).part_T.tolist() for each in near] == [[1, 1, 0], [1, 0, 1], [0, 0, 1]]


def test_a_recall_at_more_than_all_candidates_becomes_recall_at_1(model: Embedder) -> None:
    assert asked(model, searched(11, recall_at=10))[0].metric == "recall at 10"
    assert asked(model, searched(10, recall_at=10))[0].metric == "recall at 1"


@pytest.mark.parametrize(
    "items",
    [
        [],
        [HeldOut(text=text, second="a list", score=0.6) for text in TEXTS],
        [HeldOut(text=text, right=("A list",), recall_at=10) for text in TEXTS],
    ],
    ids=["a model from elsewhere", "one score", "one second text"],
)
def test_the_exam_falls_back_to_halves_of_texts_without_usable_pairs(model: Embedder, items: list[HeldOut]) -> None:
    assert asked(model, items)[0].metric == "halves found"


def test_a_graph_with_other_weights_fails_every_exam_but_the_halves(
    model: Embedder, package: Path, tmp_path: Path
) -> None:
    """Any weights find the other half of a text if both halves have the same words."""
    same = [f"{word} {other} {word} {other}" for word in WORDS[:6] for other in WORDS[6:]]
    exams: dict[str, Sample] = {
        "Spearman correlation": sample(scored(model, 60)),
        exam_of(model, sample(searched(80, 3))).metric: sample(searched(80, 3)),
        "halves found": Sample(same, [None] * len(same)),
    }
    write_other_weights(package, tmp_path)
    for metric, of_exam in exams.items():
        rung = rung_of(package, tmp_path / FILES.int8, of_exam)
        assert rung.metric == metric
        assert rung.is_passed == (metric == "halves found"), rung.metric_ratio
        assert rung_of(package, package / FILES.int8, of_exam).is_passed


def write_other_weights(package: Path, folder: Path) -> None:
    graph = onnx.load(str(package / FILES.int8))
    (table,) = (tensor for tensor in graph.graph.initializer if tensor.name == "embeddings")
    weights = np.random.default_rng(5).normal(size=table.dims).astype(np.float32)
    table.CopyFrom(numpy_helper.from_array(weights, table.name))
    onnx.save(graph, str(folder / FILES.int8))
    shutil.copyfile(package / FILES.tokenizer, folder / FILES.tokenizer)


def rung_of(package: Path, graph: Path, of_exam: Sample) -> Rung:
    manifest = read_manifest(package)
    assert manifest.quantization is not None
    with METRIC_ALONE.applied() as gates:
        return Proof(package / FILES.fp32, manifest, of_exam, gates).rung(graph, manifest.quantization)


def test_a_rung_survives_a_round_trip_through_json(package: Path) -> None:
    rung = rung_of(package, package / FILES.int8, sample(searched(80, 3)))
    facts = rung.model_dump(mode="json")
    assert Rung.model_validate(facts) == rung
