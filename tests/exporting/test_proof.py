"""Each gate works: a graph that misses a single limit is refused for it, as is one whose exam has too few items."""

import math
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper, numpy_helper

from clozeline.exporting import exams, ladder
from clozeline.exporting.exams import Sample, exam_of, logits
from clozeline.exporting.graph import read_graph, write_graph
from clozeline.exporting.ladder import Proof, lacking
from clozeline.inference.language import HIDDEN
from clozeline.inference.package import load
from clozeline.records.limits import Limit
from clozeline.records.package import FILES, Manifest, QuantizationScheme, Rung, read_manifest
from tests.exporting.conftest import TinyPackage
from tests.make.models import OPEN, SENTENCES, Limits
from tests.make.packages import LABELS, write_classifier

LIMITS = OPEN.but(
    min_agreement=0.9,
    min_agreement_texts=5,
    min_metric_items=5,
    min_embedding_cosine=0.99,
    min_token_cosine=0.98,
    max_batch_flips=0.005,
    min_batch_cosine=0.999,
)
SAMPLE = Sample(SENTENCES, [None] * len(SENTENCES))
OUT_OF_REACH = {
    "agreement": ("min_agreement", 1.01),
    "agreement_texts": ("min_agreement_texts", 6),
    "different_answers": ("min_different_answers", 1000),
    "metric_ratio": ("min_metric_ratio", 9.0),
    "metric_items": ("min_metric_items", 1000),
    "embedding_cosine_mean": ("min_embedding_cosine", 1.01),
    "token_cosine_mean": ("min_token_cosine", 1.01),
    "batch_flips": ("max_batch_flips", -0.1),
    "batch_cosine_min": ("min_batch_cosine", 1.01),
}
"""Check → its limit, and a value that no graph reaches."""


@pytest.fixture
def package(encoder_package: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(encoder_package, tmp_path / "package"))


def proof_of(package: Path, limits: Limits = LIMITS, sample: Sample = SAMPLE) -> Proof:
    return Proof(package / FILES.fp32, read_manifest(package), sample, limits.gates)


def rung_of(package: Path, limits: Limits = LIMITS, sample: Sample = SAMPLE) -> Rung:
    return rung_by(proof_of(package, limits, sample), package, limits)


def rung_by(held: Proof, package: Path, limits: Limits = LIMITS) -> Rung:
    scheme = read_manifest(package).quantization
    assert scheme is not None
    with limits.applied():
        return held.rung(package / FILES.int8, scheme)


def failed(checks: tuple[Limit, ...]) -> list[str]:
    return [check.name for check in checks if not check.is_passed]


def test_the_package_passes_every_gate(package: Path) -> None:
    assert rung_of(package).is_passed


@pytest.mark.parametrize("name", OUT_OF_REACH)
def test_int8_fails_if_any_single_gate_fails(package: Path, name: str) -> None:
    limit, value = OUT_OF_REACH[name]
    assert failed(rung_of(package, LIMITS.but(**{limit: value})).checks) == [name]


def spoil_embeddings(graph: ModelProto) -> None:
    """Add the same vector to each embedding."""
    for node in graph.graph.node:
        node.output[:] = [{"sentence_embedding": "right"}.get(name, name) for name in node.output]
    vector, axis = np.zeros(32, dtype=np.float32), np.array([-1])
    vector[0] = 3
    graph.graph.initializer.extend(numpy_helper.from_array(it, name) for it, name in ((vector, "v"), (axis, "axis")))
    graph.graph.node.extend(
        helper.make_node(kind, given, [made])
        for kind, given, made in (
            ("Add", ["right", "v"], "wrong"),
            ("ReduceL2", ["wrong", "axis"], "norm"),
            ("Div", ["wrong", "norm"], "sentence_embedding"),
        )
    )


def spoil_token_vectors(graph: ModelProto) -> None:
    """Add the same vector to the vector of each token that is answered, and to nothing that is made of them."""
    vector = np.zeros(32, dtype=np.float32)
    vector[0] = 30
    graph.graph.initializer.append(numpy_helper.from_array(vector, "v"))
    for node in graph.graph.node:
        for names in (node.input, node.output):
            names[:] = [{HIDDEN: "right"}.get(name, name) for name in names]
    graph.graph.node.append(helper.make_node("Add", ["right", "v"], [HIDDEN]))


def name_the_least_likely(graph: ModelProto) -> None:
    node = next(node for node in graph.graph.node if node.name == "top_ids")
    node.attribute.append(helper.make_attribute("largest", 0))


@pytest.mark.parametrize(
    ("damage", "figure"),
    [
        (spoil_embeddings, "embedding_cosine_mean"),
        (spoil_token_vectors, "token_cosine_mean"),
        (name_the_least_likely, "agreement"),
    ],
)
def test_the_served_outputs_are_checked_and_not_only_the_logits(
    package: Path, damage: Callable[[ModelProto], None], figure: str
) -> None:
    """The logits of both graphs are right."""
    graph = read_graph(package / FILES.int8)
    damage(graph)
    write_graph(graph, package / FILES.int8)
    assert failed(rung_of(package).checks) == [figure]


@pytest.mark.parametrize(
    ("agreement", "ratio", "limits"), [(0.95, 0.99, (0.95, 0.99)), (0.8, 0.5, (0.9, 0.97)), (0.95, 1.1, (0.95, 1.0))]
)
def test_an_earlier_rung_raises_the_limits_and_never_lowers_them(
    agreement: float, ratio: float, limits: tuple[float, float]
) -> None:
    before: Any = SimpleNamespace(agreement=SimpleNamespace(low=agreement), metric_ratio=SimpleNamespace(low=ratio))
    gates = ladder.no_worse_than(before, LIMITS.but(min_metric_ratio=0.97).gates)
    assert (gates.min_agreement, gates.min_metric_ratio) == limits


def test_one_text_is_too_few_to_pass_the_gates(package: Path) -> None:
    rung = rung_of(package, sample=Sample(["small models answer"], [None]))
    assert rung.agreement.value == 1
    assert failed(rung.checks) == ["agreement_texts", "metric_items"]
    assert [str(check) for check in lacking(rung)] == [
        "agreement_texts is 1, at least 5: NO",
        "metric_items is 2, at least 5: NO",
    ]


def test_a_long_text_with_many_masks_counts_as_one_text(package: Path) -> None:
    rung = rung_of(package, sample=Sample([" ".join(SENTENCES)], [None]))
    assert rung.agreement.num_items > 5
    assert failed(rung.checks) == ["agreement_texts"]


def say_one_label(graph: ModelProto) -> None:
    """Make the graph give one label to every text."""
    for node in graph.graph.node:
        node.output[:] = [{"logits": "right"}.get(name, name) for name in node.output]
    constants = {"nothing": np.float32(0), "always": np.float32([0, 9, 0])}
    graph.graph.initializer.extend(numpy_helper.from_array(np.array(it), name) for name, it in constants.items())
    graph.graph.node.append(helper.make_node("Mul", ["right", "nothing"], ["gone"]))
    graph.graph.node.append(helper.make_node("Add", ["gone", "always"], ["logits"]))


def test_a_constant_answer_of_fp32_fails_the_distinct_answers_check(tiny_package: TinyPackage) -> None:
    """All texts are of one class, and INT8 gives that class to every text."""
    package = tiny_package(write_classifier)
    every = [f"{one} {other}" for one in "abcdefg" for other in "hijk"]
    named = [best.label for (best,) in load(package).classify(every)]
    of_one = [text for text, label in zip(every, named, strict=True) if label == LABELS[1]]
    assert len(of_one) >= LIMITS.constants["min_agreement_texts"]
    graph = read_graph(package / FILES.int8)
    say_one_label(graph)
    write_graph(graph, package / FILES.int8)
    gates = LIMITS.but(min_different_answers=2)
    alike, different = (rung_of(package, gates, Sample(them, [None] * len(them))) for them in (of_one, every))
    assert (alike.agreement.value, alike.metric_ratio.value) == (1, 1)
    assert failed(alike.checks) == ["different_answers"]
    assert [str(check) for check in lacking(alike)] == ["different_answers is 1, at least 2: NO"]
    assert failed(different.checks) == ["agreement"]
    assert different.different_answers == len(set(named)) == 3


def test_labels_changed_by_other_texts_are_counted_relative_to_given_labels(
    topics_package: Path, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run with others, one text loses its labels: a large share of the few given labels, not of all labels."""
    manifest = read_manifest(topics_package)
    held = Proof(topics_package / FILES.fp32, manifest, Sample(SENTENCES, [None] * 5), LIMITS.gates)
    given_A = np.array([1, 0, 0] * 5)
    rounds = iter([given_A, given_A, *[given_A * (np.arange(15) >= 3)] * 3])
    monkeypatch.setattr(exams, "answers", lambda *asked: next(rounds))
    scheme = read_manifest(package).quantization
    assert isinstance(scheme, QuantizationScheme)
    rung = held.rung(topics_package / FILES.fp32, scheme)
    assert rung.batch_flips.value == pytest.approx(1 / 5)
    assert rung.batch_flips.num_items == 15


def test_fill_mask_answers_are_the_argmax_of_the_logits(package: Path) -> None:
    model = load(package, precision="fp32")
    exam = exam_of(model, Sample(SENTENCES[:1], [None]))
    (logits_MV,) = logits(model, exam.texts)
    assert exam.answers(model, model.batches(exam.texts)).top1_A.tolist() == logits_MV.argmax(axis=1).tolist()


def test_saturating_sums_are_detected_and_refused(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real saturation depends on the processor, so here another graph gives the wide sums."""
    held, opened = proof_of(package), ladder.open_graph

    def other_if_wide(path: Path, given: Manifest, *, wide_sums: bool = False) -> object:
        return opened(package / FILES.fp32 if wide_sums else path, given)

    monkeypatch.setattr(ladder, "open_graph", other_if_wide)
    rung = rung_by(held, package)
    assert rung.saturation > 0
    assert failed(rung.checks) == ["saturation"]


def no_number_in(place: int, values: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    for number, value in enumerate(values):
        yield value * np.nan if number == place else value


def test_nan_logits_fail_the_saturation_check(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = proof_of(package)
    monkeypatch.setattr(exams, "logits", lambda *given: no_number_in(1, logits(*given)))
    rung = rung_by(held, package)
    assert failed(rung.checks) == ["saturation"]
    again = Rung.model_validate_json(rung.model_dump_json())
    assert math.isnan(again.saturation)
    assert not again.is_passed


def test_nan_cosines_fail_the_batch_check(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = proof_of(package)
    # The first compares with fp32, the others are one per grouping.
    given = iter(no_number_in(2, [np.ones(3, dtype=np.float32)] * 4))
    monkeypatch.setattr(ladder, "_cosines", lambda *answers: next(given))
    assert failed(rung_by(held, package).checks) == ["batch_cosine_min"]


THREE_TEXTS = SENTENCES[:3]


@pytest.mark.parametrize(
    ("labels", "metric", "num_items"),
    [(["jax", "torch", None], "accuracy", 2), (["jax", "cobol", None], "label agreement", 3)],
)
def test_a_classifier_is_judged_by_labels_if_half_of_the_texts_have_a_known_one(
    classifier_package: Path, labels: list[str | None], metric: str, num_items: int
) -> None:
    rung = rung_of(classifier_package, sample=Sample(THREE_TEXTS, labels))
    assert rung.metric == metric
    assert rung.metric_ratio.num_items == num_items
    assert rung.batch_cosine_min is None
    named = [best.label for (best,) in load(classifier_package, precision="fp32").classify(THREE_TEXTS, truncate=True)]
    known = load(classifier_package).manifest.labels
    right = [name == label for name, label in zip(named, labels, strict=True) if label in known]
    expected = sum(right) / len(right) if metric == "accuracy" else 1.0
    assert rung.fp32_metric == pytest.approx(expected)
