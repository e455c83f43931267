"""Results of a fine-tuned task: its metrics, its tables for plots, and readable test items.

metrics/finetune/<task>.json has the headline figure, its baselines, and its known faults. In plots/finetune,
<task>_validation.csv has a row for each validation pass, <task>.csv the model's answer to each test item, and
<task>_classes.csv the figures of each class: `class` and the columns of its kind of task.
reports/finetune/<task>/examples.json has the items.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from clozeline.records.record import MetricFile, Record

# Column of <task>_classes.csv: a label, an entity type or a group of items.
CLASS = "class"

FILE = "examples.json"


class Beside(Record):
    """The same figure of a further method, for comparison; no gate reads it."""

    name: str
    value: float


class Headline(Record):
    """The figure by which a task is compared with its baselines and with the previous version. Higher is better; 1 is
    perfect.
    """

    metric: str
    value: float
    low: float
    high: float  # `low` and `high` are the ends of a 95 % interval over other test items of the same kind
    baseline: str  # common name of the simple method that this kind of task is compared with
    baseline_value: float
    trivial: str  # name of the trivial answer, such as the largest class
    trivial_value: float
    method: str = "fine-tuned encoder"  # method that `value` belongs to
    lead_low: float | None = None
    # `lead_low` and `lead_high` are the ends of a 95 % interval of `value` - `baseline_value`, paired by test item;
    # None for kinds that do not measure it.
    lead_high: float | None = None
    beside: tuple[Beside, ...] = ()
    # The same figure on those test items that are no near-duplicates of a training item, as texts are that differ in
    # case and punctuation alone. None if all test items or none are such, or for kinds that do not measure it.
    without_near_duplicates: "Headline | None" = None

    @property
    def judged(self) -> "Headline":
        """The figure that decides: that without near-duplicates of training items, if there is one."""
        return self.without_near_duplicates or self

    @property
    def compared(self) -> tuple[tuple[str, float], ...]:
        """Names and values of all other methods: further methods, the baseline, the trivial answer."""
        further = tuple((method.name, method.value) for method in self.beside)
        return (*further, (self.baseline, self.baseline_value), (self.trivial, self.trivial_value))

    @property
    def unbeaten(self) -> tuple[tuple[str, float], ...]:
        """Names and values of the baselines that the figure that decides does not beat. NaN beats no baseline; a
        baseline of NaN is ignored."""
        top = self.judged
        beside = ((top.baseline, top.baseline_value), (top.trivial, top.trivial_value))
        return tuple((name, value) for name, value in beside if not top.value > value and not math.isnan(value))


class OverSeeds(Record):
    """The headline figure over training runs with several seeds."""

    num_seeds: int
    best_seed: int  # seed of the model that is kept: the best on the validation split
    mean: float
    deviation: float  # sample standard deviation (divisor: number of seeds - 1)
    lowest: float
    highest: float


class TaskMetrics(MetricFile):
    """Figures common to every kind of task; each kind adds its own."""

    headline: Headline
    learning_rate: float | None = None  # the one whose training was kept; None: nothing was trained
    # Learning rate → score of its first validation pass, NaN if it diverged; None if one rate was tried.
    rate_scores: dict[str, float] | None = None
    best_epoch: int | float | None = None  # epoch whose weights are kept
    over_seeds: OverSeeds | None = None  # None if there was one training run
    # Share of the test texts with a near-duplicate in the pre-training text, 0-1; None for kinds whose test has no
    # texts of its own.
    contaminated_fraction: float | None = None
    only_answer: str | None = None  # the model's answer, if it gives the same answer to every test item
    # Reason why records were dropped (or an answer moved) → location of the first such record.
    first_places: dict[str, str] | None = None

    @property
    def faults(self) -> tuple[str, ...]:
        """Known faults of the model, in words."""
        behind = (f"no better than {name}" for name, _ in self.headline.unbeaten)
        only = () if self.only_answer is None else (f"says `{self.only_answer}` to every item of the test set",)
        return (*behind, *only)


@dataclass(frozen=True)
class ValidationScore:
    """Score on the validation split of a task after `step` optimizer steps; higher is better."""

    step: int
    epoch: float
    validation_score: float  # NaN: the score is undefined, such as the correlation with a constant


@dataclass(frozen=True)
class AnswerRow:
    """Right and predicted answer to a test item."""

    actual: str
    predicted: str


@dataclass(frozen=True)
class ShownItem:
    """A test item with its right and its predicted answer."""

    given: Mapping[str, str]  # input of the model, by name: `text`, or `question` and `context`, …
    actual: str
    predicted: str
    is_right: bool


def write_shown_items(folder: Path, items: Sequence[ShownItem]) -> None:
    content = TypeAdapter(Sequence[ShownItem]).dump_json(items, indent=2)
    (folder / FILE).write_bytes(content + b"\n")
