"""Each gate passes and fails at its limit, and gives the figures."""

import math
from collections.abc import Iterable

import pytest
from pydantic import ValidationError

from clozeline.params.delivery import ReleaseParams
from clozeline.records.evaluation import EncoderMetrics
from clozeline.records.finetune.task_metrics import Headline, TaskMetrics
from clozeline.records.package import ExportMetrics
from clozeline.records.package_metrics import PackageMetrics
from clozeline.records.record import NATS_PER_BYTE, PairedFigures
from clozeline.registry.decisions import Gate, forgetting, gates
from tests.make.texts import encoder_metrics, paired_figures

PARAMS = ReleaseParams(
    promote="when_not_worse",
    max_trial_items=1000,
    min_int8_agreement=0.97,
    min_int8_speedup=1.0,
    min_unigram_ratio=2.0,
    max_perplexity_ratio=1.02,
    max_forgetting=1.05,
    max_contaminated_fraction=None,
    min_accuracy_delta=-0.01,
    beat_baseline=False,
)
UNIGRAM_PERPLEXITY = 900.0


def encoder(ratio: float = 3.0, contaminated_fraction: float | None = 0.0) -> EncoderMetrics:
    """Metrics of an encoder that is so many times better than the unigram baseline."""
    loss = math.log(UNIGRAM_PERPLEXITY / ratio)
    figures = {"loss_nats_per_token": loss, "perplexity": math.exp(loss), "nats_per_byte": loss / 4.0}
    metrics = encoder_metrics(unigram_perplexity=UNIGRAM_PERPLEXITY, **figures)
    return metrics.model_copy(update={"contaminated_fraction": contaminated_fraction})


def task(accuracy: float, **facts: object) -> TaskMetrics:
    given = {"metric": "accuracy", "value": accuracy, "low": accuracy - 0.01, "high": accuracy + 0.01}
    others = {"baseline": "TF-IDF", "baseline_value": 0.6, "trivial": "largest class", "trivial_value": 0.1}
    return TaskMetrics(headline=Headline.model_validate({**given, **others, **facts}))


def exported(**known: object) -> ExportMetrics:
    always = {"fp32_size_bytes": 4, "parity_max_abs_difference": 0.0, "last_layer": "every position"}
    return ExportMetrics.model_validate({"served": "int8", "num_agreement_texts": 512, "ladder": (), **always, **known})


def figures(quality: EncoderMetrics | TaskMetrics | None, agreement: float = 0.99) -> PackageMetrics:
    return PackageMetrics(quality, exported(int8_size_bytes=1, int8_agreement=agreement))


def tried(metric: str, difference: float, half_width: float = 0.0) -> PairedFigures:
    """Paired figures of a champion with 0.8 and a candidate with 0.8 + `difference`."""
    return paired_figures(metric, 0.8 + difference, 0.8, half_width)


def told(found: Iterable[Gate]) -> str:
    return ", ".join(f"{gate.name} {'passed' if gate.is_passed else gate.otherwise}" for gate in found)


BEAT, LIMITED, BETTER = {"beat_baseline": True}, {"max_contaminated_fraction": 0.05}, {"promote": "when_better"}
TRIVIAL, BASELINE = "accuracy against the trivial answer", "accuracy against the baseline"
ITS_LEAD = f"{TRIVIAL} passed, accuracy_lead_low against the baseline"
WITHOUT_COPIES = task(0.9, without_near_duplicates=task(0.105).headline)
OF_ENCODERS, HIGH = "unigram_ratio passed, perplexity_ratio", "perplexity_ratio_high"


def test_each_gate_passes_and_fails_at_its_limit() -> None:
    for changes, quality, trial, expected in (
        ({}, encoder(2.001), None, "unigram_ratio passed"),
        ({}, encoder(1.999), None, "unigram_ratio refused"),
        # A first task. The interval of its figure is 0.01 to each side; the trivial answer has 0.1, the baseline 0.6.
        ({}, task(0.1101), None, f"{TRIVIAL} passed"),
        ({}, task(0.11), None, f"{TRIVIAL} held"),
        ({}, task(0.0, low=0.0, trivial_value=0.0), None, f"{TRIVIAL} held"),
        ({}, task(0.9, trivial_value=math.nan), None, ""),
        ({}, WITHOUT_COPIES, None, f"{TRIVIAL}, without near-duplicates of training items held"),
        (BEAT, task(0.6101), None, f"{TRIVIAL} passed, {BASELINE} passed"),
        (BEAT, task(0.61), None, f"{TRIVIAL} passed, {BASELINE} held"),
        (BEAT, task(0.601, lead_low=0.0001, lead_high=0.02), None, f"{ITS_LEAD} passed"),
        (BEAT, task(0.9, lead_low=0.0, lead_high=0.02), None, f"{ITS_LEAD} held"),
        (BEAT, task(0.9, lead_low=math.nan, lead_high=0.02), None, f"{ITS_LEAD} held"),
        (LIMITED, encoder(3, 0.05), None, "unigram_ratio passed, contaminated_fraction passed"),
        (LIMITED, encoder(3, 0.051), None, "unigram_ratio passed, contaminated_fraction refused"),
        (LIMITED, encoder(3, None), None, "unigram_ratio passed, contaminated_fraction refused"),
        (LIMITED, None, None, ""),  # a published model
        # Against a champion the figure decides, and then the worse end of its interval.
        (
            {},
            encoder(),
            tried(NATS_PER_BYTE, math.log(1.0199) / 4),
            f"{OF_ENCODERS} passed, {HIGH} passed",
        ),
        ({}, encoder(), tried(NATS_PER_BYTE, math.log(1.0201) / 4), f"{OF_ENCODERS} refused, {HIGH} held"),
        ({}, encoder(), tried(NATS_PER_BYTE, 0.0, 0.0049), f"{OF_ENCODERS} passed, {HIGH} passed"),
        ({}, encoder(), tried(NATS_PER_BYTE, 0.0, 0.0051), f"{OF_ENCODERS} passed, {HIGH} held"),
        (BETTER, encoder(), tried(NATS_PER_BYTE, -0.01, 0.009), f"{OF_ENCODERS} passed, {HIGH} passed"),
        (BETTER, encoder(), tried(NATS_PER_BYTE, -0.01, 0.011), f"{OF_ENCODERS} passed, {HIGH} kept"),
        ({}, task(0.1), tried("accuracy", -0.0099), "accuracy_delta passed, accuracy_delta_low passed"),
        ({}, task(0.1), tried("accuracy", -0.0101), "accuracy_delta refused, accuracy_delta_low held"),
        ({}, task(0.1), tried("accuracy", 0.0, 0.009), "accuracy_delta passed, accuracy_delta_low passed"),
        ({}, task(0.1), tried("accuracy", 0.0, 0.011), "accuracy_delta passed, accuracy_delta_low held"),
        (BETTER, task(0.1), tried("accuracy", 0.01, 0.009), "accuracy_delta passed, accuracy_delta_low passed"),
        (BETTER, task(0.1), tried("accuracy", 0.01, 0.011), "accuracy_delta passed, accuracy_delta_low kept"),
    ):
        agrees, *others = gates(PARAMS.model_copy(update=changes), figures(quality), trial)
        assert (agrees.name, agrees.is_passed) == ("int8_agreement", True)
        assert told(others) == expected


def test_an_int8_graph_has_to_agree_with_fp32_and_fp32_needs_no_agreement() -> None:
    disagreeing, _ = gates(PARAMS, figures(task(0.9), agreement=0.969), None)
    assert str(disagreeing) == "int8_agreement is 0.9690, at least 0.97: NO"
    assert told(gates(PARAMS, PackageMetrics(task(0.9), exported(served="fp32")), None)) == f"{TRIVIAL} passed"
    with pytest.raises(ValidationError, match="int8_agreement"):
        exported(int8_size_bytes=1)


@pytest.mark.parametrize(
    ("difference", "half_width", "is_passed"),
    [(0.02, 0.001, False), (0.02, 0.01, True), (0.0, 0.001, True), (-0.1, 0.001, True)],
)
def test_continued_training_is_refused_if_its_whole_interval_shows_forgetting(
    difference: float, half_width: float, is_passed: bool
) -> None:
    """At 4 bytes per token a ratio of 1.05 is 0.0122 nats per byte."""
    (gate,) = forgetting(PARAMS, tried(NATS_PER_BYTE, difference, half_width))
    assert (gate.is_passed, gate.otherwise) == (is_passed, "refused")
    assert forgetting(PARAMS, None) == []
