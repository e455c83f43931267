"""Tasks of the kind `classification`, and the knobs of every task with labelled texts."""

from typing import Annotated, Literal

from pydantic import Field

from clozeline.params.finetuning.shared import FinetuneParams
from clozeline.params.section import Count

_METRICS = {False: ("accuracy", "macro_f1", "matthews", "f1"), True: ("micro_f1", "macro_f1")}
"""Metrics by `multi_label`; null stands for the first."""


class LabelledParams(FinetuneParams):
    """Tasks of texts, or pairs of texts, and their labels."""

    text_field: str
    second_field: str | None
    """Field of the second text of a pair; null: single texts."""
    label_field: str
    label_files: Annotated[dict[str, str], Field(min_length=2)] | None
    """For a folder: label → a file with a text in each line, or a folder with a text in each file. Null: the subfolders
    are the labels.
    """
    multi_label: bool
    """Whether a text may have several labels, or none."""
    label_separator: Annotated[str, Field(min_length=1)]
    """Multi-label only: separator of the labels in records that hold them as one string instead of a list."""
    too_long: Literal["truncate", "drop", "error"]
    """Treatment of a text or pair of more than `max_length` tokens; it is counted in any case."""
    metric: Literal["accuracy", "macro_f1", "matthews", "f1", "micro_f1"] | None
    """Headline metric, which also selects the weights that are kept; null: accuracy, or micro-F1 of a multi-label task.
    """
    positive_label: str | None
    """Label whose F1 is the metric `f1`, or an extra figure beside any other metric; null: none."""
    class_weights: Literal["none", "balanced"]
    """Balanced: texts of rare classes weigh more in training."""
    max_classes: Annotated[int, Field(ge=2)] | None
    """Number of most frequent labels to keep; texts of rarer ones are dropped and counted. Null: all."""
    max_per_class: Count | None
    max_train: Annotated[int, Field(ge=2)] | None
    """Maximum number of training texts, chosen by their hashes; null: all."""
    train_length: Annotated[int, Field(ge=8)] | None
    """Tokens of the window that each step reads of a longer training text, drawn anew each time; null: its beginning,
    `max_length` tokens.
    """
    rules = (
        *FinetuneParams.rules,
        (
            "multi_label metric",
            lambda multi_label, metric: metric is None or metric in _METRICS[multi_label],
            f"null, or one of: {', '.join(_METRICS[False])}; for a multi-label task: {', '.join(_METRICS[True])}",
        ),
        (
            "metric positive_label",
            lambda metric, positive_label: metric != "f1" or positive_label is not None,
            "`positive_label` beside `metric: f1`: the label whose F1 it is",
        ),
        (
            "multi_label positive_label",
            lambda multi_label, positive_label: not multi_label or positive_label is None,
            "`positive_label: null` for a multi-label task",
        ),
        (
            "multi_label max_per_class",
            lambda multi_label, most: not multi_label or most is None,
            "`max_per_class: null` for a multi-label task, whose texts belong to several classes",
        ),
        (
            "second_field label_files",
            lambda second, files: second is None or files is None,
            "`second_field: null` beside `label_files`, which hold no pairs",
        ),
        (
            "train_length max_length",
            lambda window, longest: window is None or window <= longest,
            "`train_length` at most `max_length`, or null",
        ),
        (
            "train_length second_field",
            lambda window, second: window is None or second is None,
            "`train_length: null` for pairs of texts, of which a window would hold one alone",
        ),
        (
            "hub label_files",
            lambda hub, files: hub is None or files is None,
            "`label_files: null` beside `hub`: the records are on the hub",
        ),
    )

    @property
    def named_labels(self) -> frozenset[str]:
        """Labels that can be predicted even if no training text has them."""
        return frozenset()


class ClassificationParams(LabelledParams):
    """Tasks with one label, or any number of them, for each text or pair of texts."""

    kind: Literal["classification"]

    @property
    def instead_of_first_token(self) -> str:
        return (
            "family `modernbert`, which classifies at the last token if it is causal, or objective `mlm`; other "
            "families classify at the first token, which sees no other in a causal model"
        )
