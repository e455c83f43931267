"""Writing a model where stock transformers finds it."""

import re
from pathlib import Path

from safetensors import SafetensorError
from torch import Tensor
from transformers import PreTrainedModel

from clozeline.encoder.messages import errors_only


def save_weights(model: PreTrainedModel, out: Path, weights: dict[str, Tensor] | None = None) -> None:
    """Write config.json and model.safetensors.

    Raises:
        OSError: the disk did not take it; safetensors tells that by an error of its own kind.
    """
    try:
        with errors_only():
            model.save_pretrained(out, state_dict=weights)
    except SafetensorError as error:
        said = re.search(r"os error (\d+)", str(error))
        if said is None:
            raise
        raise OSError(int(said.group(1)), str(error)) from error
