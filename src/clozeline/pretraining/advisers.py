"""Progress, warnings and examples of a running training."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

from clozeline.language_modelling.detection import ReplacedTokenPair
from clozeline.pretraining.shown_examples import NUM_EXAMPLES, ShownExamples
from clozeline.pretraining.shown_parts import ShownParts
from clozeline.progress import ProgressBar
from clozeline.tokens.frequencies import unigram_entropy
from clozeline.training.callbacks import Callback, PlateauWarning
from clozeline.training.curves import CurvePoint
from clozeline.training.schedule import Schedule
from clozeline.training.state import State

if TYPE_CHECKING:
    from clozeline.pretraining.job import Pretraining


def advisers(job: "Pretraining", tokenizer: Path) -> list[Callback]:
    """Return the callbacks of the first process: a plateau warning, and examples at each validation pass."""
    params, entropy = job.params, unigram_entropy(job.train.shards, job.train.vocabulary)
    first_step = 2 * Schedule(params.schedule, job.loop.total_steps).warmup_steps
    asking: list[Callback] = []
    if not job.loop.hardware.processes.divides_weights:  # otherwise the first process alone cannot run the model
        asking = [ShownExamples.of(job.model, job.validation, tokenizer, NUM_EXAMPLES)]
    if not isinstance(job.model, ReplacedTokenPair):
        return [PlateauWarning(entropy, first_step), *asking]
    if asking:
        return [ShownParts.of(job.model, job.judge, params.discriminator_weight, entropy, first_step), *asking]
    return []


class Advancing(Callback):
    """Moves a progress bar, and measures the speed."""

    def __init__(self, bar: ProgressBar) -> None:
        self._bar = bar
        self._seconds = 0.0
        self._num_tokens = 0
        self.speeds: list[tuple[int, float]] = []
        """Pairs of a step and the real tokens per second since the previous point."""

    def on_start(self, state: State) -> None:
        self._bar.start_at(state.step)
        self._seconds, self._num_tokens = time.monotonic(), state.num_tokens

    def on_point(self, point: CurvePoint) -> None:
        now = time.monotonic()
        speed = (point.num_tokens - self._num_tokens) / (now - self._seconds)
        self._seconds, self._num_tokens = now, point.num_tokens
        self.speeds.append((point.step, speed))
        self._bar.advance(point.step - self._bar.done, note=f"{_quality(point)}, {speed:,.0f} tokens/s")


def _quality(point: CurvePoint) -> str:
    return f"loss {point.loss:.3f}" + ("" if point.accuracy is None else f", accuracy {100 * point.accuracy:.1f} %")
