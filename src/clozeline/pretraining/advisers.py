"""What a training says of itself while it runs, wherever it was started from."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

from clozeline.artifacts.curves import CurvePoint
from clozeline.encoder.detection import ReplacedTokenPair
from clozeline.params import PretrainParams
from clozeline.pretraining.shown_examples import ShownExamples
from clozeline.pretraining.shown_parts import ShownParts
from clozeline.progress import ProgressBar
from clozeline.tokens.frequencies import unigram_entropy
from clozeline.training.callbacks import Callback, PlateauWarning
from clozeline.training.state import State

if TYPE_CHECKING:
    from clozeline.pretraining.job import Pretraining


def advisers(params: PretrainParams, job: "Pretraining", tokenizer: Path) -> list[Callback]:
    """For the first process: a warning of the unigram plateau, and examples of what the model says at each look."""
    entropy = unigram_entropy(job.train.shards, job.train.vocabulary)
    first_step = 2 * params.schedule.warmup_steps
    asking: list[Callback] = []
    if not job.loop.hardware.processes.divides_weights:  # else the first process alone cannot ask the model
        asking = [ShownExamples.of(job.model, job.validation, tokenizer, params.validation.num_examples)]
    if not isinstance(job.model, ReplacedTokenPair):
        return [PlateauWarning(entropy, first_step), *asking]
    if asking:
        return [ShownParts.of(job.model, job.judge, params.discriminator_weight, entropy, first_step), *asking]
    return []


class Advancing(Callback):
    """Moves a bar of steps, and measures how fast it moves."""

    def __init__(self, bar: ProgressBar) -> None:
        self._bar = bar
        self._seconds = 0.0
        self._num_tokens = 0
        self.speeds: list[tuple[int, float]] = []
        """(step, real tokens per second since the point before)"""

    def on_start(self, state: State) -> None:
        self._bar.start_at(state.step)
        self._seconds, self._num_tokens = time.monotonic(), state.num_tokens

    def on_point(self, point: CurvePoint) -> None:
        now = time.monotonic()
        speed = (point.num_tokens - self._num_tokens) / (now - self._seconds)
        self._seconds, self._num_tokens = now, point.num_tokens
        self.speeds.append((point.step, speed))
        self._bar.advance(point.step - self._bar.done, note=f"loss {point.loss:.3f}, {speed:,.0f} tokens/s")
