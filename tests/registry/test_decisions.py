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

UNIGRAM_PERPLEXITY = 900.0


def encoder(loss_nats_per_token: float, bytes_per_token: float = 4.0) -> EncoderMetrics:
    return encoder_metrics(
        loss_nats_per_token=loss_nats_per_token,
        perplexity=math.exp(loss_nats_per_token),
        nats_per_byte=loss_nats_per_token / bytes_per_token,
        unigram_perplexity=UNIGRAM_PERPLEXITY,
    )


def task(accuracy: float) -> TaskMetrics:
    headline = Headline(
        metric="accuracy",
        value=accuracy,
        low=accuracy - 0.01,
        high=accuracy + 0.01,
        baseline="TF-IDF + logistic regression",
        baseline_value=0.6,
        trivial="largest class",
        trivial_value=0.1,
    )
    return TaskMetrics(headline=headline)


def exported(**known: object) -> ExportMetrics:
    always = {"fp32_size_bytes": 4, "parity_max_abs_difference": 0.0, "last_layer": "every position"}
    return ExportMetrics.model_validate({"served": "int8", "num_agreement_texts": 512, "ladder": (), **always, **known})


def figures(quality: EncoderMetrics | TaskMetrics, agreement: float = 0.99) -> PackageMetrics:
    return PackageMetrics(quality, exported(int8_size_bytes=1, int8_agreement=agreement))


def tried(metric: str, difference: float, half_width: float = 0.0, bytes_per_token: float = 4.0) -> PairedFigures:
    """Paired figures of a champion with 0.8 and a candidate with 0.8 + `difference`."""
    per_token = bytes_per_token if metric == NATS_PER_BYTE else None
    return paired_figures(metric, 0.8 + difference, 0.8, half_width, champion_bytes_per_token=per_token)


def passed(candidate: PackageMetrics, trial: PairedFigures | None, promote: str = "when_not_worse") -> dict[str, bool]:
    params = PARAMS.model_copy(update={"promote": promote})
    return {gate.name: gate.is_passed for gate in gates(params, candidate, trial)}


AGAINST_TRIVIAL = "accuracy against the trivial answer"


def test_a_first_version_needs_an_int8_graph_that_agrees_with_fp32() -> None:
    assert passed(figures(task(0.9)), None) == {"int8_agreement": True, AGAINST_TRIVIAL: True}
    assert passed(figures(task(0.9), agreement=0.969), None)["int8_agreement"] is False


@pytest.mark.parametrize(("accuracy", "is_passed"), [(0.1101, True), (0.11, False), (0.1, False), (0.0, False)])
def test_a_first_task_is_held_unless_its_interval_is_above_the_trivial_answer(accuracy: float, is_passed: bool) -> None:
    (gate,) = (gate for gate in gates(PARAMS, figures(task(accuracy)), None) if gate.name == AGAINST_TRIVIAL)
    assert (gate.is_passed, gate.otherwise) == (is_passed, "held")


def test_a_task_with_figure_0_is_held_even_if_the_trivial_answer_has_0_too() -> None:
    nothing = task(0.0).headline.model_copy(update={"low": 0.0, "trivial_value": 0.0})
    assert passed(figures(TaskMetrics(headline=nothing)), None)[AGAINST_TRIVIAL] is False


@pytest.mark.parametrize(("accuracy", "is_passed"), [(0.6101, True), (0.61, False), (0.601, False), (0.5, False)])
def test_with_beat_baseline_a_first_task_is_held_unless_its_interval_is_above_the_baseline(
    accuracy: float, is_passed: bool
) -> None:
    asked = PARAMS.model_copy(update={"beat_baseline": True})
    checked = {gate.name: gate.is_passed for gate in gates(asked, figures(task(accuracy)), None)}
    assert checked["accuracy against the baseline"] is is_passed
    assert "accuracy against the baseline" not in passed(figures(task(accuracy)), None)


@pytest.mark.parametrize(("lead_low", "is_passed"), [(0.0001, True), (0.0, False), (-0.006, False), (math.nan, False)])
def test_the_lead_paired_by_test_item_decides_if_the_kind_measures_it(lead_low: float, is_passed: bool) -> None:
    asked = PARAMS.model_copy(update={"beat_baseline": True})
    paired = task(0.601).headline.model_copy(update={"lead_low": lead_low, "lead_high": 0.02})
    *_, gate = gates(asked, figures(TaskMetrics(headline=paired)), None)
    assert (gate.name, gate.is_passed, gate.otherwise) == ("accuracy_lead_low against the baseline", is_passed, "held")


def test_test_items_that_resemble_training_items_do_not_help_a_first_task() -> None:
    others = task(0.105).headline
    copied = task(0.9).headline.model_copy(update={"without_near_duplicates": others})
    (_, gate) = gates(PARAMS, figures(TaskMetrics(headline=copied)), None)
    assert (gate.given, gate.is_passed) == (others.low, False)
    assert gate.name == f"{AGAINST_TRIVIAL}, without near-duplicates of training items"


def test_a_nan_baseline_adds_no_gate() -> None:
    unknown = task(0.9).headline.model_copy(update={"trivial_value": math.nan})
    assert passed(figures(TaskMetrics(headline=unknown)), None) == {"int8_agreement": True}


def test_a_task_with_a_champion_is_compared_with_the_champion() -> None:
    assert AGAINST_TRIVIAL not in passed(figures(task(0.1)), tried("accuracy", 0.0))


def test_served_fp32_needs_no_agreement() -> None:
    served = PackageMetrics(task(0.9), exported(served="fp32"))
    assert passed(served, None) == {AGAINST_TRIVIAL: True}


def test_served_int8_without_an_agreement_is_refused() -> None:
    with pytest.raises(ValidationError, match="int8_agreement"):
        exported(int8_size_bytes=1)


@pytest.mark.parametrize(("ratio", "is_passed"), [(10, True), (2.001, True), (1.999, False), (0.5, False)])
def test_a_first_encoder_must_beat_the_unigram_baseline_by_a_factor(ratio: float, is_passed: bool) -> None:
    untrained = figures(encoder(math.log(UNIGRAM_PERPLEXITY / ratio)))
    assert passed(untrained, None) == {"int8_agreement": True, "unigram_ratio": is_passed}


@pytest.mark.parametrize(("ratio", "is_passed"), [(0.5, True), (1.0, True), (1.0199, True), (1.0201, False)])
def test_an_encoder_may_be_worse_up_to_the_limit(ratio: float, is_passed: bool) -> None:
    checked = passed(figures(encoder(5.0)), tried(NATS_PER_BYTE, math.log(ratio) / 4.0))
    assert checked["perplexity_ratio"] is checked["perplexity_ratio_high"] is is_passed


@pytest.mark.parametrize(("delta", "is_passed"), [(0.1, True), (0.0, True), (-0.0099, True), (-0.0101, False)])
def test_a_classifier_may_lose_accuracy_up_to_the_limit(delta: float, is_passed: bool) -> None:
    checked = passed(figures(task(0.8)), tried("accuracy", delta))
    assert checked == {"int8_agreement": True, "accuracy_delta": is_passed, "accuracy_delta_low": is_passed}


@pytest.mark.parametrize(
    ("promote", "metric", "difference", "half_width", "proven"),
    [
        ("when_not_worse", "accuracy", 0.0, 0.009, True),
        ("when_not_worse", "accuracy", 0.0, 0.011, False),
        ("when_not_worse", NATS_PER_BYTE, 0.0, 0.0049, True),
        ("when_not_worse", NATS_PER_BYTE, 0.0, 0.0051, False),
        ("when_better", "accuracy", 0.01, 0.009, True),
        ("when_better", "accuracy", 0.01, 0.011, False),
        ("when_better", NATS_PER_BYTE, -0.01, 0.009, True),
        ("when_better", NATS_PER_BYTE, -0.01, 0.011, False),
    ],
)
def test_the_worse_end_of_the_interval_decides(
    promote: str, metric: str, difference: float, half_width: float, proven: bool
) -> None:
    quality = encoder(5.0) if metric == NATS_PER_BYTE else task(0.9)
    checked = passed(figures(quality), tried(metric, difference, half_width), promote)
    (decided,) = (name for name in checked if name.endswith(("_low", "_high")))
    assert checked[decided] is proven
    assert all(checked[name] for name in checked if name != decided)


def test_without_evidence_a_candidate_is_kept_under_when_better_and_held_otherwise() -> None:
    better = PARAMS.model_copy(update={"promote": "when_better"})
    *_, last = gates(better, figures(task(0.8)), tried("accuracy", 0.0))
    assert (last.is_passed, last.otherwise) == (False, "kept")
    *_, last = gates(PARAMS, figures(task(0.8)), tried("accuracy", 0.0, 0.5))
    assert (last.is_passed, last.otherwise) == (False, "held")


def test_a_gate_states_its_numbers() -> None:
    told = [str(gate) for gate in gates(PARAMS, figures(task(0.7), agreement=0.9), tried("accuracy", -0.1))]
    assert told == [
        "int8_agreement is 0.9000, at least 0.97: NO",
        "accuracy_delta is -0.1000, at least -0.01: NO",
        "accuracy_delta_low is -0.1000, at least -0.01: NO",
    ]


@pytest.mark.parametrize(("fraction", "is_passed"), [(0.0, True), (0.05, True), (0.051, False), (None, False)])
def test_a_contaminated_model_fails_the_gate_if_a_limit_is_set(fraction: float | None, is_passed: bool) -> None:
    limited = PARAMS.model_copy(update={"max_contaminated_fraction": 0.05})
    for quality in (task(0.9), encoder(2.0)):
        counted = figures(quality.model_copy(update={"contaminated_fraction": fraction}))
        gate = {gate.name: gate.is_passed for gate in gates(limited, counted, None)}
        assert gate["contaminated_fraction"] is is_passed
        assert "contaminated_fraction" not in passed(counted, None)


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


def test_a_published_model_has_only_the_gate_of_its_int8() -> None:
    limited = PARAMS.model_copy(update={"max_contaminated_fraction": 0.1})
    found = gates(limited, PackageMetrics(None, exported(int8_size_bytes=1, int8_agreement=0.9)), None)
    assert [(gate.name, gate.is_passed) for gate in found] == [("int8_agreement", False)]


@pytest.fixture
def address(tmp_path: Path) -> str:
    return Workspace(tmp_path).defaults()["MLFLOW_TRACKING_URI"]


def test_the_newest_decision_the_aliases_and_the_latencies_are_shown(
    address: str, tmp_path: Path, encoder_package: Path
) -> None:
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
    refused = Decision(outcome="refused", gates=(gate,))
    for time, decision in (
        ("20260101T000000Z", refused),
        ("20260102T000000Z", refused.model_copy(update={"outcome": "promoted"})),
    ):
        publisher.record(version, decision, f"{time}.json")
    publisher.registry.promote(version)
    publisher.measured(version, {"latency/int8_text_milliseconds": 1.5})
    found = released(address, package)
    assert found
    assert found.decision
    assert (found.decision.outcome, found.decision.gates) == ("promoted", (gate,))
    assert found.aliases == ("champion",)
    assert found.latency == {"int8_text_milliseconds": 1.5}


def test_a_missing_package_is_named(address: str, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"dist/encoder is not an exported model"):
        released(address, tmp_path / "dist" / "encoder")
