"""Presets of well-known hub datasets: one word in params.yaml for their address, their splits, and their fields.

The labels of GLUE's test splits are secret. GLUE's validation split is therefore the test split here, and validation
items are taken out of its training split.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

_GLUE = {"dataset": "nyu-mll/glue", "revision": "bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c"}
_SQUAD = {"dataset": "rajpurkar/squad", "revision": "7b6d24c440a36b6815f21b70d25016731768db1f"}
_SQUAD_V2 = {"dataset": "rajpurkar/squad_v2", "revision": "3ffb306f725f7d2ce8394bc1873b24868140c412"}


@dataclass(frozen=True)
class Preset:
    """Values under those of a task that names this preset."""

    kind: str
    hub: Mapping[str, str]
    splits: Mapping[str, str | None]
    knobs: Mapping[str, Any] = field(default_factory=dict)
    """Knobs of the kind of task."""

    def values_under(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Return the preset's values for `task`, without the revision if the task names its own dataset."""
        own = task.get("hub")
        has_own_dataset = isinstance(own, Mapping) and "dataset" in own
        hub = {name: value for name, value in self.hub.items() if not (has_own_dataset and name == "revision")}
        return {"hub": hub, "splits": dict(self.splits), **self.knobs}


def _glue(
    subset: str,
    text: str,
    second: str | None = None,
    *,
    test: str = "validation",
    metric: str = "accuracy",
    positive_label: str | None = None,
) -> Preset:
    """Return the preset of a GLUE task. `positive_label`: class whose F1 GLUE reports (Wang et al. 2018, section 2)."""
    fields = {"text_field": text, "second_field": second, "label_field": "label"}
    knobs = {**fields, "metric": metric, "positive_label": positive_label}
    return Preset(
        "classification",
        {**_GLUE, "subset": subset},
        {"train": "train", "validation": None, "test": test},
        knobs,
    )


def _squad(hub: Mapping[str, str]) -> Preset:
    """Return the preset of a SQuAD dataset. The test split is secret: the validation split takes its place."""
    return Preset("question_answering", hub, {"train": "train", "validation": None, "test": "validation"})


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "cola": _glue("cola", "sentence", metric="matthews"),
        "sst2": _glue("sst2", "sentence"),
        "mrpc": _glue("mrpc", "sentence1", "sentence2", metric="f1", positive_label="equivalent"),
        "qqp": _glue("qqp", "question1", "question2", metric="f1", positive_label="duplicate"),
        "mnli": _glue("mnli", "premise", "hypothesis", test="validation_matched"),
        "qnli": _glue("qnli", "question", "sentence"),
        "rte": _glue("rte", "sentence1", "sentence2"),
        "wnli": _glue("wnli", "sentence1", "sentence2"),
        "conll2003": Preset(
            "tagging",
            {"dataset": "eriktks/conll2003", "revision": "refs/convert/parquet"},
            {"train": "train", "validation": "validation", "test": "test"},
            {"tokens_field": "tokens", "tags_field": "ner_tags"},
        ),
        "stsb": Preset(
            "similarity",
            {**_GLUE, "subset": "stsb"},
            {"train": "train", "validation": None, "test": "validation"},
            {"first_field": "sentence1", "second_field": "sentence2", "score_field": "label"},
        ),
        "squad": _squad(_SQUAD),
        "squad_v2": _squad(_SQUAD_V2),
    }
)
"""Presets by the value of `preset`."""
