"""Report of a finished task: the headline figure beside its baselines, all other figures, and items of the test split.

A kind of task gives its figure on any of its test items; the report gives the interval, the lead over the baseline, the
figure on some of the items, and the examples.

Shapes: N test items that are judged together, such as texts, pairs or contexts.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from clozeline.records.finetune.statistics import Figure, bootstrap_interval, paired_interval
from clozeline.records.finetune.task_metrics import Beside, Headline, ShownItem

Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class HeadlineFigure:
    """The headline figure of the model, of the baseline and of the trivial answer, each on any of the test items."""

    metric: str
    ours: Figure
    baseline: tuple[str, Figure]
    trivial: tuple[str, Figure]
    method: str = "fine-tuned encoder"
    beside: Mapping[str, Figure] = field(default_factory=dict)
    # Whether the lead over the baseline is measured.
    is_paired: bool = True
    # Interval of `ours`; None: by bootstrap.
    interval: Callable[[Places], tuple[float, float]] | None = None

    def on(self, places: Sequence[int], further: Mapping[str, Figure] = MappingProxyType({})) -> Headline:
        """Return the figure on these test items, and that of `further` methods.

        An undefined figure is 0: JSON has no NaN, and the correlation of constant values carries no information.
        """
        place_N = np.asarray(places, dtype=np.int64)

        def drawn(figure: Figure) -> Figure:
            return lambda draw_N: figure(place_N[draw_N])

        num, (baseline, of_baseline), (trivial, of_trivial) = len(place_N), self.baseline, self.trivial
        low, high = self.interval(place_N) if self.interval else bootstrap_interval(drawn(self.ours), num)
        beside = {**self.beside, **further}
        lead = paired_interval(drawn(self.ours), drawn(of_baseline), num) if self.is_paired else (None, None)
        return Headline(
            metric=self.metric,
            value=or_zero(self.ours(place_N)),
            low=or_zero(low),
            high=or_zero(high),
            baseline=baseline,
            baseline_value=or_zero(of_baseline(place_N)),
            trivial=trivial,
            trivial_value=of_trivial(place_N),
            method=self.method,
            lead_low=lead[0],
            lead_high=lead[1],
            beside=tuple(Beside(name=name, value=figure(place_N)) for name, figure in beside.items()),
        )


def or_zero(figure: float) -> float:
    """Return the figure, or 0 for NaN."""
    return figure if math.isfinite(figure) else 0.0


@dataclass(frozen=True)
class TaskReport:
    """Results of a finished task that the stage writes."""

    headline: Headline
    # All other figures, for metrics/finetune/<task>.json.
    figures: Mapping[str, object]
    # (actual, predicted) category of each test item that has one; each kind defines its categories.
    confusion: Sequence[tuple[str, str]] = ()
    # Figures of each class (entity type, group of items). All classes have the same figures, including `f1`. A file of
    # their own keeps the metrics readable.
    per_class: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    examples: Sequence[ShownItem] = ()
    # Text of each test item, searched for in the pre-training text and among the texts of the training items.
    test_texts: Sequence[str] = ()
    train_texts: Sequence[str] = ()
    # Both texts of each pair as one text, for kinds whose pairs share texts.
    test_pairs: Sequence[str] = ()
    train_pairs: Sequence[str] = ()
    # Right score and answer for each test pair, for kinds that answer with a number.
    scores: Sequence[tuple[float, float]] = ()
    # Function: places in `test_rows` → the headline on the test items that have these; None for kinds without it.
    headline_on: Callable[[Sequence[int]], Headline] | None = None
    # Reason why records were dropped (or an answer moved) → location of the first such record.
    first_places: Mapping[str, str] = field(default_factory=dict)
    # The model's answer, if it gives the same answer to every test item and the right answers differ.
    only_answer: str | None = None

    @property
    def test_rows(self) -> Sequence[str]:
        """The texts whose near-duplicates in `train_rows` give a test item away: pairs, or single texts."""
        return self.test_pairs or self.test_texts

    @property
    def train_rows(self) -> Sequence[str]:
        return self.train_pairs or self.train_texts


def only_answer(predicted: Sequence[str], right: Sequence[str]) -> str | None:
    """Return the answer given to every item if all are the same and `right` differs; None otherwise."""
    return predicted[0] if len(set(predicted)) == 1 and len(set(right)) > 1 else None


def only_answer_to(items: Sequence[ShownItem]) -> str | None:
    """Return the only answer to all items of the test split, as `only_answer` does."""
    return only_answer([item.predicted for item in items], [item.actual for item in items])


def shown(items: Sequence[ShownItem], num_examples: int) -> list[ShownItem]:
    """Return at most `num_examples` items in their order, half of them wrong if there are enough of both."""
    wrong = [place for place, item in enumerate(items) if not item.is_right]
    right = [place for place, item in enumerate(items) if item.is_right]
    num_wrong = min(len(wrong), max(num_examples // 2, num_examples - len(right)))
    chosen = sorted(wrong[:num_wrong] + right[: num_examples - num_wrong])
    return [items[place] for place in chosen]
