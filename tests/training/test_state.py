"""Claim: callbacks are called at each event, and a stuck training is reported."""

import logging
from pathlib import Path

import pytest

from clozeline.language.objectives import Split, unigram_entropy
from clozeline.language.shards import TokenShards
from clozeline.training.curves import CurvePoint
from clozeline.training.state import PlateauWarning


def warned(losses: list[float], caplog: pytest.LogCaptureFixture) -> int:
    """Return the number of warnings about a training with these losses; token frequencies alone give a loss of 6.1."""
    warning = PlateauWarning(unigram_loss=6.1, first_step=50, patience_points=5)
    with caplog.at_level(logging.WARNING):
        for place, loss in enumerate(losses, start=1):
            warning.on_point(CurvePoint(10 * place, loss, 1e-3, 1.0, 0, 0.5))
    return len(caplog.records)


def test_a_loss_stuck_at_the_unigram_entropy_gets_one_warning_with_advice(caplog: pytest.LogCaptureFixture) -> None:
    """P23."""
    assert warned([9.0, 7.0, *[6.12] * 40], caplog) == 1
    assert "half the learning rate" in caplog.text
    assert "6.10" in caplog.text


@pytest.mark.parametrize(
    "losses",
    [
        [9.0, 7.0, *[6.12] * 6, 5.8, 5.5, 5.2],  # passes the plateau
        [6.1, 6.1, 6.1, 6.1, 5.5, 5.0],  # at the plateau only during warm-up
        [6.12, 5.9] * 20,  # comes and goes
        [8.0] * 40,  # stands elsewhere
    ],
)
def test_a_training_that_passes_the_plateau_gets_no_warning(losses: list[float], caplog) -> None:
    assert warned(losses, caplog) == 0


def test_the_unigram_entropy_equals_that_of_the_tokens(tiny_tokens: Path) -> None:
    """In the tiny language 59 words are almost equally frequent: ln 59 = 4.08."""
    split = Split.open(TokenShards.open(tiny_tokens, "train"), max_length=32)
    assert unigram_entropy(split.shards, split.vocabulary) == pytest.approx(4.07, abs=0.02)
