"""Claim: of several learning rates the best after its first validation pass goes on, as if it were the only one."""

import csv
import logging
from pathlib import Path

import pytest

from clozeline.system.errors import TrainingError
from clozeline.tasks.classification.texts import SingleLabel
from clozeline.tasks.training import CLEARLY, BestLook
from tests.make.tasks import contents, keep_last_weights, metrics_of, without_card
from tests.stages.finetune.topics import PARAMS, Finetune

RATE = 0.01
LOWER = 0.01
"""Multiple of the rate with which the tests train."""


class Killed(BaseException):
    pass


def test_the_rate_with_the_best_first_pass_goes_on_with_the_bytes_of_a_training_at_that_rate_alone(
    run: Finetune, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    alone = {factor: run(f"alone {factor}", rate_factors=[factor]) for factor in (1.0, LOWER)}
    first = {factor: looks_of(folder)[1] for factor, folder in alone.items()}
    assert first[1.0] != first[LOWER], "the test needs rates that differ"
    best = max(first, key=first.__getitem__)
    for factors in ([1.0, LOWER], [LOWER, 1.0]):
        found = run(f"grid {factors}", rate_factors=factors)
        assert f"learning rate {best * RATE} is kept" in caplog.text
        metrics, of_best = metrics_of(found), metrics_of(alone[best])
        assert metrics.pop("rate_scores") == {str(factor * RATE): first[factor] for factor in factors}
        assert metrics == of_best, "a rate that is tried alone has no scores beside it"
        assert metrics["learning_rate"] == best * RATE
        assert without_card(found / "model") == without_card(alone[best] / "model")
        for name in ("training.csv", "validation.csv", "confusion.csv"):
            assert (found / name).read_bytes() == (alone[best] / name).read_bytes()


@pytest.mark.parametrize("knob", [{"frozen_layers": 1}, {"lora": {"rank": 4, "alpha": 8, "dropout": 0.1}}])
def test_frozen_layers_and_adapters_are_as_if_the_rate_had_been_alone(
    run: Finetune, knob: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_last_weights(monkeypatch)  # and so the last rate
    grid = run("grid", rate_factors=[LOWER, 1.0], epochs=2, **knob)
    alone = run("alone", rate_factors=[1.0], epochs=2, **knob)
    assert metrics_of(grid)["learning_rate"] == metrics_of(alone)["learning_rate"] == RATE
    assert without_card(grid / "model") == without_card(alone / "model")
    assert (grid / "training.csv").read_bytes() == (alone / "training.csv").read_bytes()


def looks_of(folder: Path) -> list[float]:
    with (folder / "validation.csv").open(newline="") as file:
        return [float(row["validation_score"]) for row in csv.DictReader(file)]


@pytest.mark.parametrize(("lead", "kept"), [(0.0, LOWER), (CLEARLY - 0.01, LOWER), (CLEARLY + 0.01, 1.0)])
def test_another_rate_than_the_first_needs_a_clear_lead(
    run: Finetune, lead: float, kept: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BestLook, "trial", lambda it, callback: 0.5 + lead if it.learning_rate == RATE else 0.5)
    assert metrics_of(run("out", rate_factors=[LOWER, 1.0]))["learning_rate"] == kept * RATE


def test_log_and_metrics_name_the_rate_as_people_multiply(
    run: Finetune, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(BestLook, "trial", lambda it, callback: it.learning_rate * 1000)
    optimizer = PARAMS.optimizer.model_dump() | {"learning_rate": 5e-5}
    metrics = metrics_of(run("out", rate_factors=[1.0, 3.0], epochs=1, optimizer=optimizer))
    assert (metrics["learning_rate"], 3.0 * 5e-5) == (0.00015, 0.00015000000000000001)
    assert list(metrics["rate_scores"]) == ["5e-05", "0.00015"]
    assert "learning rate 0.00015 is kept: 0.0500 at 5e-05, 0.1500 at 0.00015" in caplog.text


@pytest.mark.parametrize("kills_at", range(1, 8))
def test_a_run_killed_in_a_trial_or_after_it_resumes_to_the_same_bytes(
    run: Finetune, kills_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Validation passes: before and after the first epoch at each rate, then after each further epoch."""
    factors = [LOWER, 1.0]
    whole = run("whole", rate_factors=factors, epochs=3)
    judge, asked = SingleLabel.validation_score, iter(range(1, 100))

    def killed_once(task: SingleLabel) -> float:
        if next(asked) == kills_at:
            raise Killed
        return judge(task)

    monkeypatch.setattr(SingleLabel, "validation_score", killed_once)
    num_passes = 6
    if kills_at <= num_passes:
        with pytest.raises(Killed):
            run("parts", rate_factors=factors, epochs=3)
    assert contents(run("parts", rate_factors=factors, epochs=3)) == contents(whole)
    repeated = next(asked) - 1 - num_passes
    assert repeated <= 2, "at most one pass before and one after the epoch that was cut off"


def test_a_rate_that_diverges_is_not_used_and_alone_it_ends_the_training(
    run: Finetune, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = metrics_of(run("grid", rate_factors=[1.0, 1e30]))
    assert metrics["learning_rate"] == RATE
    assert (list(metrics["rate_scores"]), metrics["rate_scores"]["1e+28"]) == (["0.01", "1e+28"], "NaN")
    assert "learning rate 1e+28 is not used" in caplog.text
    with pytest.raises(TrainingError):
        run("alone", rate_factors=[1e30, 1.0])


def test_the_default_project_trains_at_its_tuned_rate_alone() -> None:
    assert PARAMS.rate_factors == (1.0,)
