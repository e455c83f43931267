"""A task of the kind `classification`, and what every task of labelled texts has."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from clozeline.params.finetuning.shared import FinetuneParams
from clozeline.params.section import Count

_METRICS = {False: ("accuracy", "macro_f1", "matthews", "f1"), True: ("micro_f1", "macro_f1")}
"""By `multi_label`; the first is what null stands for."""


class LabelledParams(FinetuneParams):
    """Texts, or pairs of them, and their labels."""

    text_field: str
    second_field: str | None
    """Where the second text of a pair is; null: one text."""
    label_field: str
    label_files: Annotated[dict[str, str], Field(min_length=2)] | None
    """Of a folder: label → a file in it, with a text in each line, or a folder, with a text in each file. Null: the
    folders in it are the labels.
    """
    multi_label: bool
    """A text may have several labels, or none."""
    label_separator: Annotated[str, Field(min_length=1)]
    """Multi-label alone: between the labels, where a record has them as one string and not as a list."""
    too_long: Literal["truncate", "drop", "error"]
    """What becomes of a text, or a pair, of more than `max_length` tokens; it is counted in any case."""
    metric: Literal["accuracy", "macro_f1", "matthews", "f1", "micro_f1"] | None
    """The headline, by which the best look is chosen too; null: accuracy, or micro-F1 of a multi-label task."""
    positive_label: str | None
    """The label whose F1 is the metric `f1`, and beside any other metric a figure more; null: none."""
    class_weights: Literal["none", "balanced"]
    """Balanced: texts of rare classes count for more in training."""
    max_classes: Annotated[int, Field(ge=2)] | None
    """The most frequent labels; rarer ones are left out and counted. Null: all."""
    max_per_class: Count | None
    rules = (
        *FinetuneParams.rules,
        (
            "multi_label metric",
            lambda multi_label, metric: metric is None or metric in _METRICS[multi_label],
            f"null, or one of: {', '.join(_METRICS[False])}; of a multi-label task {', '.join(_METRICS[True])}",
        ),
        (
            "metric positive_label",
            lambda metric, positive_label: metric != "f1" or positive_label is not None,
            "`positive_label` beside `metric: f1`: the label whose F1 it is",
        ),
        (
            "multi_label positive_label",
            lambda multi_label, positive_label: not multi_label or positive_label is None,
            "`positive_label: null` where a text has several labels",
        ),
        (
            "multi_label max_per_class",
            lambda multi_label, most: not multi_label or most is None,
            "`max_per_class: null` where a text has several labels: it belongs to no one class",
        ),
        (
            "second_field label_files",
            lambda second, files: second is None or files is None,
            "`second_field: null` where a file holds texts: they are no pairs",
        ),
        (
            "hub label_files",
            lambda hub, files: hub is None or files is None,
            "`label_files: null` where the records are on the hub",
        ),
    )
    measured_by: ClassVar[tuple[str, ...]] = (
        *FinetuneParams.measured_by,
        "text_field",
        "second_field",
        "label_field",
        "label_files",
        "multi_label",
        "label_separator",
        "too_long",
        "metric",
        "positive_label",
        "max_classes",
        "max_per_class",
    )

    @property
    def named_labels(self) -> frozenset[str]:
        """Those that can be answered whether or not a training text has them."""
        return frozenset()


class ClassificationParams(LabelledParams):
    """One label, or any number of them, for each text or each pair of texts."""

    kind: Literal["classification"]
