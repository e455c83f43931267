"""A model that was trained to say whether one text follows from another: natural language inference.

Shapes: B rows.
"""

import json
from pathlib import Path

from huggingface_hub import snapshot_download
from torch import Tensor

from clozeline.errors import ArtifactError
from clozeline.tasks import heads
from clozeline.tasks.encoded import EncodedBatch
from clozeline.tasks.heads import TaskModel

_ENDING = "ForSequenceClassification"
_FOLLOWS = "entail"
"""How the label begins that is sought: `entailment`, `ENTAILMENT`."""
_FILES = ["*.json", "*.safetensors", "*.txt", "*.model"]


def place_of(name: str, revision: str | None) -> Path:
    """The folder `name`, or that of what the hub has under this name, where `revision` is a commit.

    Raises:
        ArtifactError: there is no such model, or the hub did not answer.
    """
    if Path(name).is_dir():
        return Path(name)
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=_FILES))
    except (OSError, ValueError) as error:
        raise ArtifactError(
            f"params.yaml: `entailment.model` is no folder, and cannot be had from the hub: {_first_line(error)}",
            given=name,
            expected="a folder with a model, or a name on the hub and a network",
            do=f"where there is a network, `hf download {name} --local-dir FOLDER`; then entailment: {{model: FOLDER}}",
        ) from error


def build(folder: Path) -> TaskModel:
    """The classifier in the folder; raises as `heads.build`.

    Raises:
        ArtifactError: it was trained for something else.
    """
    config = folder / "config.json"
    facts = json.loads(config.read_bytes()) if config.is_file() else {}
    labels, names = list(facts.get("id2label", {}).values()), facts.get("architectures") or []
    is_classifier = any(name.endswith(_ENDING) for name in names)
    if facts and not (is_classifier and sum(map(_is_entailment, labels)) == 1):
        raise ArtifactError(
            "params.yaml: the model of `entailment.model` does not say whether one text follows from another",
            given=f"labels: {', '.join(labels) or 'none'}; architectures: {', '.join(names) or 'none'}",
            expected="a classifier of pairs of texts with a label `entailment`",
            do="fine-tune one (`kind: classification` with `second_field`, such as preset mnli), or name another model",
        )
    return heads.build(folder, "text-classification", 0, {})


def entailment_logits(model: TaskModel, batch: EncodedBatch) -> Tensor:
    """`logit_B` of the second text following from the first."""
    (place,) = (place for place, label in model.config.id2label.items() if _is_entailment(label))
    logit_B: Tensor = model(**batch.inputs).logits[:, place].float()
    return logit_B


def _is_entailment(label: str) -> bool:
    return label.casefold().startswith(_FOLLOWS)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
