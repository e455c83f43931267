"""metrics/finetune/<task>.json: the figure that a task of any kind is compared by, and what speaks against it."""

import math

from clozeline.artifacts.record import MetricFile, Record

_CORRELATIONS = frozenset({"matthews", "spearman"})


class Headline(Record):
    """The one figure by which a task is compared: with what is simple, and with the version before. Higher is better,
    and 1 is perfect.
    """

    metric: str
    value: float
    low: float
    high: float
    """Ends of a 95 % interval, on other items like those of the test part."""
    baseline: str
    """The simple method of this kind of task, named as people know it."""
    baseline_value: float
    trivial: str
    """What needs no method at all."""
    trivial_value: float
    method: str = "fine-tuned encoder"
    """What `value` is of."""

    @property
    def is_share(self) -> bool:
        """Told in per cent; a correlation is none of anything."""
        return self.metric not in _CORRELATIONS

    @property
    def unbeaten(self) -> tuple[tuple[str, float], ...]:
        """Names and values of those that it is no better than; a figure that is not a number is better than none."""
        beside = ((self.baseline, self.baseline_value), (self.trivial, self.trivial_value))
        return tuple((name, value) for name, value in beside if not self.value > value and not math.isnan(value))


class OverSeeds(Record):
    """The headline of trainings from several seeds."""

    num_seeds: int
    best_seed: int
    """The one that is kept: the best on the validation part."""
    mean: float
    deviation: float
    """Of the sample: its sum of squares is divided by one less than there are seeds."""
    lowest: float
    highest: float


class TaskMetrics(MetricFile):
    """The kind's own figures stand beside these."""

    headline: Headline
    over_seeds: OverSeeds | None = None
    """None: there was one training."""
    contaminated_fraction: float | None = None
    """Of the test texts, those nearly seen in pre-training; None of a kind whose test has no texts of its own."""
    only_answer: str | None = None
    """What the model says to every test item, where it says the same to all."""
    first_places: dict[str, str] | None = None
    """Why a record was left out (or an answer of it moved) → where the first such one stands."""

    @property
    def faults(self) -> tuple[str, ...]:
        """What speaks against the model, in words."""
        behind = (f"no better than {name}" for name, _ in self.headline.unbeaten)
        only = () if self.only_answer is None else (f"says `{self.only_answer}` to every item of the test set",)
        return (*behind, *only)
