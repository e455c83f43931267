"""Table of the tasks of GLUE: files, columns, labels, metrics. How each is trained is a preset of params.yaml."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from clozeline.errors import ParamsError

_ONE_PART: Mapping[str, str] = MappingProxyType({"dev": "validation"})


@dataclass(frozen=True)
class GlueTask:
    """One task; `name` is that of its dataset on the hub, `title` that of its official folder."""

    name: str
    title: str
    columns: Mapping[str, str | int]
    """Field of the hub's dataset → column of the official .tsv: its header, or its number if there is no header."""
    label_column: str | int
    labels: tuple[str, ...]
    """Names of the labels by their number; empty: the label is a score."""
    metrics: tuple[str, ...]
    """Names in `figures.METRICS`; the score of the task is their mean."""
    parts: Mapping[str, str] = field(default_factory=lambda: _ONE_PART)
    """Official name of each part that is evaluated → its name on the hub."""
    in_average: bool = True

    @property
    def preset(self) -> str:
        """Name of its preset in params.yaml."""
        return self.name if self.labels else f"{self.name}_together"

    @property
    def has_header(self) -> bool:
        """Whether the official .tsv has one."""
        return isinstance(self.label_column, str)


_ENTAILED = ("entailment", "not_entailment")
_SENTENCES: Mapping[str, str] = MappingProxyType({"sentence1": "sentence1", "sentence2": "sentence2"})
TASKS: Mapping[str, GlueTask] = MappingProxyType(
    {
        task.name: task
        for task in (
            GlueTask("cola", "CoLA", {"sentence": 3}, 1, ("unacceptable", "acceptable"), ("matthews",)),
            GlueTask("sst2", "SST-2", {"sentence": "sentence"}, "label", ("negative", "positive"), ("accuracy",)),
            GlueTask(
                "mrpc",
                "MRPC",
                {"sentence1": "#1 String", "sentence2": "#2 String"},
                "Quality",
                ("not_equivalent", "equivalent"),
                ("f1", "accuracy"),
            ),
            GlueTask("stsb", "STS-B", _SENTENCES, "score", (), ("pearson", "spearman")),
            GlueTask(
                "qqp",
                "QQP",
                {"question1": "question1", "question2": "question2"},
                "is_duplicate",
                ("not_duplicate", "duplicate"),
                ("f1", "accuracy"),
            ),
            GlueTask(
                "mnli",
                "MNLI",
                {"premise": "sentence1", "hypothesis": "sentence2"},
                "gold_label",
                ("entailment", "neutral", "contradiction"),
                ("accuracy",),
                {"dev_matched": "validation_matched", "dev_mismatched": "validation_mismatched"},
            ),
            GlueTask(
                "qnli", "QNLI", {"question": "question", "sentence": "sentence"}, "label", _ENTAILED, ("accuracy",)
            ),
            GlueTask("rte", "RTE", _SENTENCES, "label", _ENTAILED, ("accuracy",)),
            GlueTask("wnli", "WNLI", _SENTENCES, "label", _ENTAILED[::-1], ("accuracy",), in_average=False),
        )
    }
)
"""Tasks by name, in the order of the leaderboard."""


def chosen(names: str | None) -> list[GlueTask]:
    """Return the tasks named in a list with commas; all of them if there is none.

    Raises:
        ParamsError: a name is unknown.
    """
    if names is None:
        return list(TASKS.values())
    wanted = [plain(name) for name in names.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in TASKS]
    if unknown or not wanted:
        raise ParamsError(
            "GLUE has no such task",
            given=", ".join(unknown) or "no name",
            expected=f"names with commas between them, of: {', '.join(TASKS)}",
            do="write for example `--tasks cola,rte`, or leave --tasks out for all",
        )
    return [TASKS[name] for name in TASKS if name in wanted]


def plain(name: str) -> str:
    """Return the name of a task or its folder in small letters without signs: `sst2` for `SST-2`."""
    return "".join(sign for sign in name.lower() if sign.isalnum())
