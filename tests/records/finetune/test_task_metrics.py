"""Claim: `unbeaten` names the baselines that the task's figure does not beat."""

import math

import pytest

from clozeline.records.finetune.task_metrics import Headline


@pytest.mark.parametrize(
    ("value", "baseline_value", "named"),
    [
        (0.71, 0.7, ()),
        (0.7, 0.7, ("counting words",)),
        (0.6, 0.7, ("counting words",)),
        (0.5, 0.7, ("counting words", "largest class")),
        (math.nan, 0.7, ("counting words", "largest class")),
        (0.6, math.nan, ()),
    ],
)
def test_unbeaten_baselines_are_named(value: float, baseline_value: float, named: tuple[str, ...]) -> None:
    figure = {"metric": "accuracy", "value": value, "low": value, "high": value}
    baselines = {"baseline": "counting words", "baseline_value": baseline_value}
    trivial = {"trivial": "largest class", "trivial_value": 0.5}
    headline = Headline.model_validate(figure | baselines | trivial)
    assert tuple(name for name, _ in headline.unbeaten) == named
