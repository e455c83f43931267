"""Claim: a stuck training is reported."""

import logging

import pytest

from clozeline.training.curves import CurvePoint
from clozeline.training.state import PlateauWarning


@pytest.mark.parametrize(
    ("losses", "num_warnings"),
    [
        ([9.0, 7.0, *[6.12] * 40], 1),
        ([9.0, 7.0, *[6.12] * 6, 5.8, 5.5, 5.2], 0),  # passes the plateau
        ([6.1, 6.1, 6.1, 6.1, 5.5, 5.0], 0),  # at the plateau only during warm-up
        ([6.12, 5.9] * 20, 0),  # comes and goes
        ([8.0] * 40, 0),  # stands elsewhere
    ],
)
def test_a_loss_stuck_at_the_unigram_entropy_gets_one_warning_with_advice(
    losses: list[float], num_warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    """P23: token frequencies alone give a loss of 6.1; warm-up ends at step 50."""
    warning = PlateauWarning(unigram_loss=6.1, first_step=50, patience_points=5)
    with caplog.at_level(logging.WARNING):
        for place, loss in enumerate(losses, start=1):
            warning.on_point(CurvePoint(10 * place, loss, 1e-3, 1.0, 0, 0.5))
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == num_warnings
    assert all("half the learning rate" in line and "6.10" in line for line in told)
