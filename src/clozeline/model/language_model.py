"""An encoder with a head that names tokens, masked ones or the next: built, loaded, saved, asked.

Shapes: B rows, L longest row, T targets, H hidden, V vocabulary.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, PreTrainedModel

from clozeline.errors import ArtifactError, ParamsError
from clozeline.model.families import FAMILIES, FORMS, Objective, TokenIds
from clozeline.model.objectives import TargetBatch
from clozeline.model.saving import save_weights
from clozeline.params import ModelParams

_AUTO: Mapping[Objective, Any] = MappingProxyType({"mlm": AutoModelForMaskedLM, "clm": AutoModelForCausalLM})


def build(params: ModelParams, objective: Objective, ids: TokenIds, seed: int) -> PreTrainedModel:
    """A model with random weights, which are a function of `seed`; the global random state stays as it was.

    Raises:
        ParamsError: `params.family` is not a row of FAMILIES, or is not made for `objective`.
    """
    forms = FAMILIES.get(params.family, {})
    if objective not in forms:
        able = sorted(family for family, forms in FAMILIES.items() if objective in forms)
        raise ParamsError(
            f"params.yaml: `pretrain.model.family` cannot be trained with objective `{objective}`",
            given=params.family,
            expected=f"one of: {', '.join(able)}",
            do="choose one of them, or add a row to src/clozeline/model/families.py",
        )
    config = forms[objective].configure(params, ids)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _AUTO[objective].from_config(config, attn_implementation="sdpa")


def load(folder: Path) -> PreTrainedModel:
    """A saved model, ready to be asked.

    Raises:
        ArtifactError: the folder holds no language model of a known family.
    """
    if not (folder / "config.json").is_file():
        raise ArtifactError(
            f"{folder} holds no model",
            given=f"no {folder / 'config.json'}",
            expected="a folder that `pretrain` wrote",
            do="run `dvc repro pretrain`",
        )
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    name = (config.architectures or ["no architecture"])[0]
    if name not in FORMS:
        raise ArtifactError(
            f"{folder} holds a model of another kind",
            given=name,
            expected=f"one of: {', '.join(sorted(FORMS))}",
            do="add a row for it to src/clozeline/model/families.py",
        )
    objective, _ = FORMS[name]
    return _AUTO[objective].from_pretrained(folder, local_files_only=True, attn_implementation="sdpa").eval()


def objective_of(model: PreTrainedModel) -> Objective:
    objective, _ = FORMS[type(model).__name__]
    return objective


def save(model: PreTrainedModel, tokenizer: Path, out: Path) -> None:
    """Fill the folder `out` with what stock `AutoModelForMaskedLM` and `AutoTokenizer` load."""
    save_weights(model, out)
    for file in sorted(tokenizer.iterdir()):
        shutil.copyfile(file, out / file.name)


def target_logits(model: PreTrainedModel, batch: TargetBatch) -> Tensor:
    """`logits_TV`: the head sees the targets alone, so that its cost is that of the targets, not of B × L."""
    _, form = FORMS[type(model).__name__]
    encoded = model.base_model(batch.input_ids_BL, attention_mask=batch.attention_mask_BL, **form.arguments)
    hidden_BLH = encoded.last_hidden_state
    hidden_TH = hidden_BLH.reshape(-1, hidden_BLH.shape[-1])[batch.slot_T]
    return form.project(model, hidden_TH)


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
