"""Each gate passes and fails at its limit, and gives the figures."""

import math
import shutil
from pathlib import Path

import pytest
from pydantic import ValidationError

from clozeline.params.delivery import ReleaseParams
from clozeline.records.evaluation import EncoderMetrics
from clozeline.records.finetune.task_metrics import Headline, TaskMetrics
from clozeline.records.limits import NATS_PER_BYTE, PairedFigures
from clozeline.records.package import ExportMetrics
from clozeline.records.package_metrics import PackageMetrics
from clozeline.registry.decisions import Decision, Gate, forgetting, gates, released
from clozeline.registry.publishing import Evidence, Publisher
from clozeline.system.errors import ArtifactError
from clozeline.system.workspace import Workspace
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
BEAT_BASELINE = PARAMS.model_copy(update={"beat_baseline": True})
UNIGRAM_PERPLEXITY = 900.0
AGAINST_TRIVIAL, AGAINST_BASELINE = "accuracy against the trivial answer", "accuracy against the baseline"


def encoder(loss_nats_per_token: float) -> EncoderMetrics:
    return encoder_metrics(
        loss_nats_per_token=loss_nats_per_token,
        perplexity=math.exp(loss_nats_per_token),
        nats_per_byte=loss_nats_per_token / 4.0,
        unigram_perplexity=UNIGRAM_PERPLEXITY,
    )


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


def checked(
    candidate: PackageMetrics, trial: PairedFigures | None = None, params: ReleaseParams = PARAMS
) -> dict[str, bool]:
    return {gate.name: gate.is_passed for gate in gates(params, candidate, trial)}


@pytest.mark.parametrize(
    ("accuracy", "facts", "is_passed"),
    [
        (0.1101, {}, True),
        (0.11, {}, False),
        (0.1, {}, False),
        (0.0, {"low": 0.0, "trivial_value": 0.0}, False),
        (0.9, {"trivial_value": math.nan}, None),
        (0.9, {"without_near_duplicates": task(0.105).headline}, False),
    ],
)
def test_a_first_task_is_held_unless_its_interval_is_above_the_trivial_answer(
    accuracy: float, facts: dict[str, object], is_passed: bool | None
) -> None:
    """Test items that resemble training items do not help."""
    agrees, *others = gates(PARAMS, figures(task(accuracy, **facts)), None)
    assert (agrees.name, agrees.is_passed) == ("int8_agreement", True)
    suffix = ", without near-duplicates of training items" if "without_near_duplicates" in facts else ""
    told = [(gate.name, gate.is_passed, gate.otherwise) for gate in others]
    assert told == ([] if is_passed is None else [(AGAINST_TRIVIAL + suffix, is_passed, "held")])


@pytest.mark.parametrize(("accuracy", "is_passed"), [(0.6101, True), (0.61, False), (0.601, False), (0.5, False)])
def test_with_beat_baseline_a_first_task_is_held_unless_its_interval_is_above_the_baseline(
    accuracy: float, is_passed: bool
) -> None:
    assert checked(figures(task(accuracy)), params=BEAT_BASELINE)[AGAINST_BASELINE] is is_passed
    assert AGAINST_BASELINE not in checked(figures(task(accuracy)))


@pytest.mark.parametrize(("lead_low", "is_passed"), [(0.0001, True), (0.0, False), (-0.006, False), (math.nan, False)])
def test_the_lead_paired_by_test_item_decides_if_the_kind_measures_it(lead_low: float, is_passed: bool) -> None:
    *_, gate = gates(BEAT_BASELINE, figures(task(0.601, lead_low=lead_low, lead_high=0.02)), None)
    assert (gate.name, gate.is_passed, gate.otherwise) == ("accuracy_lead_low against the baseline", is_passed, "held")


def test_an_int8_graph_has_to_agree_with_fp32_and_fp32_needs_no_agreement() -> None:
    assert checked(figures(task(0.9), agreement=0.969))["int8_agreement"] is False
    assert checked(PackageMetrics(task(0.9), exported(served="fp32"))) == {AGAINST_TRIVIAL: True}
    with pytest.raises(ValidationError, match="int8_agreement"):
        exported(int8_size_bytes=1)


@pytest.mark.parametrize(("ratio", "is_passed"), [(10, True), (2.001, True), (1.999, False), (0.5, False)])
def test_a_first_encoder_must_beat_the_unigram_baseline_by_a_factor(ratio: float, is_passed: bool) -> None:
    untrained = figures(encoder(math.log(UNIGRAM_PERPLEXITY / ratio)))
    assert checked(untrained) == {"int8_agreement": True, "unigram_ratio": is_passed}


@pytest.mark.parametrize(("ratio", "is_passed"), [(0.5, True), (1.0, True), (1.0199, True), (1.0201, False)])
def test_an_encoder_may_be_worse_up_to_the_limit(ratio: float, is_passed: bool) -> None:
    found = checked(figures(encoder(5.0)), tried(NATS_PER_BYTE, math.log(ratio) / 4.0))
    assert found["perplexity_ratio"] is found["perplexity_ratio_high"] is is_passed


@pytest.mark.parametrize(("delta", "is_passed"), [(0.1, True), (0.0, True), (-0.0099, True), (-0.0101, False)])
def test_a_classifier_may_lose_accuracy_up_to_the_limit(delta: float, is_passed: bool) -> None:
    found = checked(figures(task(0.1)), tried("accuracy", delta))
    assert found == {"int8_agreement": True, "accuracy_delta": is_passed, "accuracy_delta_low": is_passed}


@pytest.mark.parametrize(
    ("promote", "metric", "difference", "half_width", "otherwise"),
    [
        ("when_not_worse", "accuracy", 0.0, 0.009, None),
        ("when_not_worse", "accuracy", 0.0, 0.011, "held"),
        ("when_not_worse", NATS_PER_BYTE, 0.0, 0.0049, None),
        ("when_not_worse", NATS_PER_BYTE, 0.0, 0.0051, "held"),
        ("when_better", "accuracy", 0.01, 0.009, None),
        ("when_better", "accuracy", 0.01, 0.011, "kept"),
        ("when_better", NATS_PER_BYTE, -0.01, 0.009, None),
        ("when_better", NATS_PER_BYTE, -0.01, 0.011, "kept"),
    ],
)
def test_the_worse_end_of_the_interval_decides(
    promote: str, metric: str, difference: float, half_width: float, otherwise: str | None
) -> None:
    """Without evidence a candidate is kept under `when_better` and held otherwise."""
    params = PARAMS.model_copy(update={"promote": promote})
    quality = encoder(5.0) if metric == NATS_PER_BYTE else task(0.9)
    *others, decided = gates(params, figures(quality), tried(metric, difference, half_width))
    assert decided.name.endswith(("_low", "_high"))
    assert all(gate.is_passed for gate in others)
    assert decided.is_passed is (otherwise is None)
    assert otherwise in (None, decided.otherwise)


def test_a_gate_states_its_numbers() -> None:
    told = [str(gate) for gate in gates(PARAMS, figures(task(0.7), agreement=0.9), tried("accuracy", -0.1))]
    assert told[:2] == ["int8_agreement is 0.9000, at least 0.97: NO", "accuracy_delta is -0.1000, at least -0.01: NO"]


@pytest.mark.parametrize(("fraction", "is_passed"), [(0.0, True), (0.05, True), (0.051, False), (None, False)])
def test_a_contaminated_model_fails_the_gate_if_a_limit_is_set(fraction: float | None, is_passed: bool) -> None:
    limited = PARAMS.model_copy(update={"max_contaminated_fraction": 0.05})
    for quality in (task(0.9), encoder(2.0)):
        counted = figures(quality.model_copy(update={"contaminated_fraction": fraction}))
        assert checked(counted, params=limited)["contaminated_fraction"] is is_passed
        assert "contaminated_fraction" not in checked(counted)
    assert checked(figures(None, agreement=0.9), params=limited) == {"int8_agreement": False}, "a published model"


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


def test_the_newest_decision_the_aliases_and_the_latencies_are_shown(tmp_path: Path, encoder_package: Path) -> None:
    address = Workspace(tmp_path).defaults()["MLFLOW_TRACKING_URI"]
    with pytest.raises(ArtifactError, match="dist/encoder"):
        released(address, tmp_path / "dist" / "encoder")
    package = shutil.copytree(encoder_package, tmp_path / "dist" / "encoder")
    publisher = Publisher(address)
    assert released(address, package) is None
    metrics = tmp_path / "evaluate.json"
    metrics.write_text("{}")
    version = publisher.publish(package, "clozeline-encoder", Evidence({"evaluate.json": metrics}, {}))
    found = released(address, package)
    assert found
    assert (found.version, found.aliases, found.decision, found.latency) == (version, (), None, {})

    gate = Gate("int8_agreement", 0.97, "at least", 0.96)
    for day, outcome in (("01", "refused"), ("02", "promoted")):
        decision = Decision.model_validate({"outcome": outcome, "gates": (gate,)})
        publisher.record(version, decision, f"202601{day}T000000Z.json")
    publisher.registry.promote(version)
    publisher.measured(version, {"latency/int8_text_milliseconds": 1.5})
    found = released(address, package)
    assert found
    assert found.decision
    assert (found.decision.outcome, found.decision.gates, found.aliases) == ("promoted", (gate,), ("champion",))
    assert found.latency == {"int8_text_milliseconds": 1.5}
