"""An encoder with a head that names masked tokens: built, loaded, saved, asked.

Shapes: B rows, L longest row, N targets, H hidden, V vocabulary.
"""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoConfig, AutoModelForMaskedLM, PreTrainedModel

from clozeline.errors import ArtifactError, ParamsError
from clozeline.model.families import FAMILIES, TokenIds
from clozeline.params import ModelParams


@dataclass(frozen=True)
class MaskedBatch:
    """Rows with some tokens hidden, and what was hidden."""

    input_ids_BL: Tensor
    attention_mask_BL: Tensor | None
    """None where no row is padded: attention then takes a faster path."""
    slot_N: Tensor
    """Targets: indices into the flattened [B × L]."""
    labels_N: Tensor


def build(params: ModelParams, ids: TokenIds, seed: int) -> PreTrainedModel:
    """A model with random weights, which are a function of `seed`; the global random state stays as it was.

    Raises:
        ParamsError: `params.family` is not a row of FAMILIES.
    """
    if params.family not in FAMILIES:
        raise ParamsError(
            "params.yaml: `pretrain.model.family` is not a known family",
            given=params.family,
            expected=f"one of: {', '.join(sorted(FAMILIES))}",
            do="choose one of them, or add a row to src/clozeline/model/families.py",
        )
    config = FAMILIES[params.family].configure(params, ids)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForMaskedLM.from_config(config, attn_implementation="sdpa")


def load(folder: Path) -> PreTrainedModel:
    """A saved model, ready to be asked.

    Raises:
        ArtifactError: the folder holds no masked language model of a known family.
    """
    if not (folder / "config.json").is_file():
        raise ArtifactError(
            f"{folder} holds no model",
            given=f"no {folder / 'config.json'}",
            expected="a folder that `pretrain` wrote",
            do="run `dvc repro pretrain`",
        )
    family = AutoConfig.from_pretrained(folder, local_files_only=True).model_type
    if family not in FAMILIES:
        raise ArtifactError(
            f"{folder} holds a model of another kind",
            given=family,
            expected=f"one of: {', '.join(sorted(FAMILIES))}",
            do="add a row for it to src/clozeline/model/families.py",
        )
    return AutoModelForMaskedLM.from_pretrained(folder, local_files_only=True, attn_implementation="sdpa").eval()


def save(model: PreTrainedModel, tokenizer: Path, out: Path) -> None:
    """Fill the folder `out` with what stock `AutoModelForMaskedLM` and `AutoTokenizer` load."""
    save_weights(model, out)
    for file in sorted(tokenizer.iterdir()):
        shutil.copyfile(file, out / file.name)


def save_weights(model: PreTrainedModel, out: Path) -> None:
    """Write config.json and model.safetensors.

    Raises:
        OSError: the disk did not take it; safetensors tells that by an error of its own kind.
    """
    try:
        model.save_pretrained(out, safe_serialization=True)
    except SafetensorError as error:
        said = re.search(r"os error (\d+)", str(error))
        if said is None:
            raise
        raise OSError(int(said.group(1)), str(error)) from error


def target_logits(model: PreTrainedModel, batch: MaskedBatch) -> Tensor:
    """`logits_NV`: the head sees the targets alone, so that its cost is that of the targets, not of B × L."""
    hidden_BLH = model.base_model(batch.input_ids_BL, attention_mask=batch.attention_mask_BL).last_hidden_state
    hidden_NH = hidden_BLH.reshape(-1, hidden_BLH.shape[-1])[batch.slot_N]
    return FAMILIES[model.config.model_type].project(model, hidden_NH)


def check_vocabulary(model: PreTrainedModel, vocab_size: int, tokens: Path) -> None:
    """Raises:
    ArtifactError: the model has another vocabulary than the tokens were made with.
    """
    if model.config.vocab_size != vocab_size:
        raise ArtifactError(
            "the tokenizer's size differs from the model's",
            given=f"tokens of {vocab_size:,} kinds in {tokens}",
            expected=f"{model.config.vocab_size:,} kinds: the rows of the model's embedding",
            do="make both from one tokenizer: `dvc repro pretrain`",
        )
