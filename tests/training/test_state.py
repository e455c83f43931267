"""Claim: callbacks are called at each event, and a stuck training is reported."""

import logging
from pathlib import Path

import pytest

from clozeline.language.objectives import Split, unigram_entropy
from clozeline.language.shards import TokenShards
from clozeline.params.pretraining import PretrainParams
from clozeline.pretraining import job as pretraining
from clozeline.training.curves import CurvePoint, ValidationPass
from clozeline.training.state import Callback, Callbacks, PlateauWarning, State


def points(losses: list[float]) -> list[CurvePoint]:
    return [CurvePoint(10 * place, loss, 1e-3, 1.0, 0, 0.5) for place, loss in enumerate(losses, start=1)]


def warned(losses: list[float], caplog: pytest.LogCaptureFixture) -> int:
    """Return the number of warnings about a training with these losses; token frequencies alone give a loss of 6.1."""
    warning = PlateauWarning(unigram_loss=6.1, first_step=50, patience_points=5)
    with caplog.at_level(logging.WARNING):
        for point in points(losses):
            warning.on_point(point)
    return len(caplog.records)


def test_a_loss_stuck_at_the_unigram_entropy_gets_one_warning_with_advice(
    caplog: pytest.LogCaptureFixture,
) -> None:
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
def test_a_training_that_passes_the_plateau_gets_no_warning(
    losses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    assert warned(losses, caplog) == 0


def test_the_unigram_entropy_equals_that_of_the_tokens(tiny_tokens: Path) -> None:
    """In the tiny language 59 words are almost equally frequent: ln 59 = 4.08."""
    split = Split.open(TokenShards.open(tiny_tokens, "train"), max_length=32)
    assert unigram_entropy(split.shards, split.vocabulary) == pytest.approx(4.07, abs=0.02)


class Heard(Callback):
    def __init__(self) -> None:
        self.all: list[str] = []

    def on_start(self, state: State) -> None:
        self.all.append(f"start at {state.step}")

    def on_point(self, point: CurvePoint) -> None:
        self.all.append(f"point {point.step}")

    def on_validation(self, validation: ValidationPass) -> None:
        self.all.append(f"validation {validation.step}")

    def on_end(self, state: State) -> None:
        self.all.append(f"end at {state.step}")


def test_callbacks_receive_start_points_validation_passes_and_end_in_order(
    tiny_pretraining: PretrainParams, tiny_tokens: Path, tiny_tokenizer: Path
) -> None:
    validation = tiny_pretraining.validation.model_copy(update={"every_steps": 10})
    params = tiny_pretraining.model_copy(update={"steps": 20, "log_every_steps": 10, "validation": validation})
    first, second = Heard(), Heard()
    pretraining.pretrain(params, seed=1, tokens=tiny_tokens, tokenizer=tiny_tokenizer, callbacks=[first, second])
    assert first.all == ["start at 0", "point 10", "validation 10", "point 20", "validation 20", "end at 20"]
    assert second.all == first.all


def test_a_callback_without_overrides_does_nothing() -> None:
    Callbacks((Callback(),)).on_point(points([1.0])[0])
