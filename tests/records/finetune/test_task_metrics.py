"""Claim: `unbeaten` names the baselines that the task's figure does not beat."""

import math

import pytest

from clozeline.records.finetune.task_metrics import Headline


def of(value: float) -> Headline:
    return Headline(
        metric="accuracy",
        value=value,
        low=value,
        high=value,
        baseline="counting words",
        baseline_value=0.7,
        trivial="largest class",
        trivial_value=0.5,
    )


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (0.71, ()),
        (0.7, ("counting words",)),
        (0.6, ("counting words",)),
        (0.5, ("counting words", "largest class")),
        (math.nan, ("counting words", "largest class")),
    ],
)
def test_unbeaten_baselines_are_named(value: float, named: tuple[str, ...]) -> None:
    assert tuple(name for name, _ in of(value).unbeaten) == named


def test_every_model_beats_a_nan_baseline() -> None:
    figure = of(0.6).model_copy(update={"baseline_value": math.nan})
    assert figure.unbeaten == ()
