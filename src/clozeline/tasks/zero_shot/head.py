"""The pre-trained masked language model, and its probabilities for a blank.

Shapes: B rows, L longest row, V vocabulary.
"""

import json
from pathlib import Path

from torch import Tensor

from clozeline.encoder.positions import ChosenPositions
from clozeline.errors import ArtifactError
from clozeline.tasks import heads
from clozeline.tasks.encoded import EncodedBatch
from clozeline.tasks.heads import TaskModel

_ENDING = "ForMaskedLM"


def build(encoder: Path, family: str | None = None) -> TaskModel:
    """Return the masked language model in the folder. Raises what `heads.build` raises, and:

    Raises:
        ArtifactError: the model is not a masked language model, so it has no vocabulary head.
    """
    config = encoder / "config.json"
    names = json.loads(config.read_bytes()).get("architectures") or [] if config.is_file() else [_ENDING]
    if not any(name.endswith(_ENDING) for name in names):
        raise ArtifactError(
            f"{encoder} is not a masked language model (…{_ENDING}), but {', '.join(names) or 'nothing'}",
            do="pre-train with `objective: mlm`, or choose another kind of task",
        )
    return heads.build(encoder, "mlm", 0, {}, family=family)


def log_probabilities(model: TaskModel, batch: EncodedBatch, mask_id: int) -> Tensor:
    """Return `log_probability_BV` of each token at the last mask of each row."""
    is_mask_BL = batch.input_ids_BL == mask_id
    last_B = is_mask_BL.shape[1] - 1 - is_mask_BL.flip(1).int().argmax(dim=1)
    at_masks = ChosenPositions(last_B[:, None], is_mask_BL.shape[1])
    log_probability_BV: Tensor = model(**batch.inputs, positions=at_masks).logits[:, 0].float().log_softmax(dim=1)
    return log_probability_BV
