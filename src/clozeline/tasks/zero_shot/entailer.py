"""Model of natural language inference: a classifier of whether one text follows from another.

Shapes: B rows.
"""

import json
from pathlib import Path

from torch import Tensor

from clozeline.errors import ArtifactError
from clozeline.tasks import heads
from clozeline.tasks.encoded import EncodedBatch
from clozeline.tasks.heads import TaskModel

_ENDING = "ForSequenceClassification"
_FOLLOWS = "entail"
"""Prefix of the label of entailment, ignoring case: `entailment`, `ENTAILMENT`."""


def build(folder: Path) -> TaskModel:
    """Return the classifier in the folder. Raises what `heads.build` raises, and:

    Raises:
        ArtifactError: the model is not a classifier with a label of entailment.
    """
    config = folder / "config.json"
    facts = json.loads(config.read_bytes()) if config.is_file() else {}
    labels, names = list(facts.get("id2label", {}).values()), facts.get("architectures") or []
    is_classifier = any(name.endswith(_ENDING) for name in names)
    if not (is_classifier and sum(map(_is_entailment, labels)) == 1):
        raise ArtifactError(
            f"`entailment.model` must classify pairs, with one label `entailment`, not {', '.join(labels) or 'none'}"
            f" (architectures: {', '.join(names) or 'none'})",
            do="name another model, or fine-tune one (`kind: classification` with `second_field`, as in preset mnli)",
        )
    return heads.build(folder, "text-classification", 0, {})


def entailment_logits(model: TaskModel, batch: EncodedBatch) -> Tensor:
    """Return `logit_B` of entailment: that the second text follows from the first."""
    (place,) = (place for place, label in model.config.id2label.items() if _is_entailment(label))
    logit_B: Tensor = model(**batch.inputs).logits[:, place].float()
    return logit_B


def _is_entailment(label: str) -> bool:
    return label.casefold().startswith(_FOLLOWS)
