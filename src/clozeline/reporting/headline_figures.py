"""Headline figure of each model, for comparison with a baseline and with the last run."""

from dataclasses import dataclass
from typing import Final

from clozeline.errors import ClozelineError
from clozeline.reporting import quality, tasks
from clozeline.reporting.numbers import Format, difference, share
from clozeline.reporting.run import Run

_RANGE: Final = "\N{NO-BREAK SPACE}–\N{NO-BREAK SPACE}"


@dataclass(frozen=True)
class Judged:
    """Headline figure of one model; higher is better."""

    model: str
    """Folder under `models/`."""
    name: str
    metric: str
    tracked_as: str
    """Name of the figure in an MLflow flow run."""
    value: float
    low: float
    high: float
    """`low` and `high` are the ends of the 95 % interval."""
    baseline: str
    baseline_value: float
    form: Format
    faults: tuple[str, ...] = ()

    @property
    def interval(self) -> str:
        """Return the 95 % interval in words."""
        return f"{self.form(self.low)}{_RANGE}{self.form(self.high)}"

    def change_from(self, before: float) -> tuple[str, str]:
        """Return the difference in words and its kind: `good`, `bad`, or `note` if it is within the interval."""
        change = self.value - before
        is_chance = self.low <= before <= self.high
        kind = "note" if is_chance or change == 0 else "good" if change > 0 else "bad"
        return f"{difference(change, self.form)}{', within the interval' if is_chance and change else ''}", kind


def judged(run: Run) -> list[Judged]:
    """Return the encoder and the tasks that have figures. The chapters name the missing files of the others."""
    made: list[Judged] = []
    for read in (_encoder, *(lambda run, task=task: _task(run, task) for task in run.tasks)):
        try:
            made.append(read(run))
        except ClozelineError:
            continue
    return made


def _encoder(run: Run) -> Judged:
    figures = quality.metrics(run)
    fields = ("encoder", "encoder", "top1", "evaluate.top1", figures.top1, figures.top1_low, figures.top1_high)
    return Judged(*fields, "unigram baseline", figures.unigram_top1, share)


def _task(run: Run, task: str) -> Judged:
    given = tasks.headline(run, task)
    return Judged(
        model=f"finetuned/{task}",
        name=task,
        metric=given.metric,
        tracked_as=f"finetune/{task}.headline.value",
        value=given.value,
        low=given.low,
        high=given.high,
        baseline=given.baseline,
        baseline_value=given.baseline_value,
        form=tasks.form(given),
        faults=tasks.faults(run, task),
    )
