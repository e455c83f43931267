"""An encoder with a head that names tokens, masked ones or the next: built, loaded, saved, asked.

Shapes: B rows, L longest row, T targets, H hidden, V vocabulary.
"""

import json
import logging
import shutil
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor
from transformers import PreTrainedModel

from clozeline.encoder.detection import GENERATOR, ReplacedTokenPair, fresh_generator, load_pair, parts_of
from clozeline.encoder.encoders import OWN_ARCHITECTURE, OwnEncoderWithHead, load_own, project_own
from clozeline.encoder.families import FAMILIES, FORMS, Objective, TokenIds
from clozeline.encoder.messages import errors_only
from clozeline.encoder.objectives import TargetBatch
from clozeline.encoder.regularization import regularize
from clozeline.encoder.saving import save_weights
from clozeline.encoder.stock_classes import longest_row_of
from clozeline.encoder.targets_only import encode_targets
from clozeline.errors import ArtifactError, ParamsError
from clozeline.params import ModelParams
from clozeline.params.model import OWN_ENCODER

_LOG = logging.getLogger(__name__)

LanguageModel: TypeAlias = PreTrainedModel | OwnEncoderWithHead | ReplacedTokenPair


def build(params: ModelParams, objective: Objective, ids: TokenIds, seed: int) -> LanguageModel:
    """A model with random weights, which are a function of `seed`; the global random state stays as it was.

    Raises:
        ParamsError: `params.family` is not a row of FAMILIES, or is not made for `objective`, or cannot have
            `params.stochastic_depth`.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _fresh(params, objective, ids)
    for part in parts_of(model):
        regularize(part, params)
    return model


def _fresh(params: ModelParams, objective: Objective, ids: TokenIds) -> LanguageModel:
    if OWN_ENCODER.fullmatch(params.family) and objective == "mlm":
        return OwnEncoderWithHead(params, ids)
    forms = FAMILIES[params.family].forms if params.family in FAMILIES else {}
    if objective not in forms:
        able = [name for name, family in FAMILIES.items() if objective in family.forms]
        raise ParamsError(
            f"params.yaml: `pretrain.model.family` cannot be trained with objective `{objective}`",
            given=params.family,
            expected=f"one of: {', '.join(able)}",
            do="choose one of them, or the other objective",
        )
    _tell_what_is_fixed(params)
    form = forms[objective]
    with errors_only():
        model = form.model_class._from_config(form.configure(params, ids), attn_implementation=form.attention)
        if objective != "rtd":
            return model
        return ReplacedTokenPair(model, fresh_generator(model, forms["mlm"], params.generator_fraction))


def load(folder: Path) -> LanguageModel:
    """A saved model, ready to be asked.

    Raises:
        ArtifactError: the folder holds no language model of a known family.
    """
    config = folder / "config.json"
    if not config.is_file():
        raise ArtifactError(
            f"{folder} holds no model",
            given=f"no {config}",
            expected="a folder that `pretrain` wrote",
            do="run `dvc repro pretrain`",
        )
    name = (json.loads(config.read_text(encoding="utf-8")).get("architectures") or ["no architecture"])[0]
    if name == OWN_ARCHITECTURE:
        return load_own(folder).eval()
    if name not in FORMS:
        raise ArtifactError(
            f"{folder} holds a model of another kind",
            given=name,
            expected=f"one of: {', '.join(sorted([*FORMS, OWN_ARCHITECTURE]))}",
            do="pre-train one of them, or add a row for it to clozeline/model/families/",
        )
    objective, form = FORMS[name]
    with errors_only():
        if objective == "rtd":
            return load_pair(folder, form).eval()
        model: PreTrainedModel = form.model_class.from_pretrained(
            folder, local_files_only=True, use_safetensors=True, attn_implementation=form.attention
        )
    return model.eval()


def objective_of(model: LanguageModel) -> Objective:
    """Of a class that is no row of FAMILIES: masked, for only such are opened (published.py)."""
    name = type(parts_of(model)[0]).__name__
    return FORMS[name][0] if name in FORMS else "mlm"


def save(model: LanguageModel, tokenizer: Path, out: Path, weights: dict[str, Tensor] | None = None) -> None:
    """Fill `out` with what stock `AutoModelForMaskedLM` (of a causal model `AutoModelForCausalLM`) and
    `AutoTokenizer` load; `AutoModel` takes the encoder out of it.

    Of replaced-token detection that is the discriminator (`AutoModelForPreTraining`), which has its generator, a masked
    language model, in a folder inside.

    `weights`: in place of the model's own, where other processes have parts of those.
    """
    if isinstance(model, ReplacedTokenPair):
        model.save(out, weights)
        _save_tokenizer(tokenizer, out / GENERATOR)
    else:
        save_weights(model, out, weights)
    _save_tokenizer(tokenizer, out)


def save_encoder(model: LanguageModel, tokenizer: Path, out: Path, weights: dict[str, Tensor] | None = None) -> None:
    """Fill `out` with the encoder alone, without its head: what stock `AutoModel` and `AutoTokenizer` load.

    `weights`: of `model`, in place of its own.

    Raises:
        ParamsError: it is no stock class.
    """
    if isinstance(model, OwnEncoderWithHead):
        raise ParamsError(
            "an encoder of your own cannot be saved without its head",
            given=model.config.params.family,
            expected="a stock class of transformers",
            do="save the model whole; `.encoder` of what is loaded is yours",
        )
    encoder: PreTrainedModel = model.base_model
    if weights is not None:
        prefix = next(f"{name}." for name, module in model.named_modules() if module is encoder)
        weights = {name.removeprefix(prefix): weight for name, weight in weights.items() if name.startswith(prefix)}
    save_weights(encoder, out, weights)
    _save_tokenizer(tokenizer, out)


def _save_tokenizer(tokenizer: Path, out: Path) -> None:
    for file in sorted(tokenizer.iterdir()):
        shutil.copyfile(file, out / file.name)


def target_logits(model: LanguageModel, batch: TargetBatch) -> Tensor:
    """`logits_TV`: the head, and the last layer where that can be, see the targets alone, so that their cost is that
    of the targets, not of B × L. Of replaced-token detection they are the generator's."""
    if isinstance(model, ReplacedTokenPair):
        return target_logits(model.generator, batch)
    if not isinstance(model, OwnEncoderWithHead) and type(model).__name__ not in FORMS:
        logits_BLV: Tensor = model(batch.input_ids_BL, attention_mask=batch.attention_mask_BL).logits
        return logits_BLV.flatten(0, 1)[batch.slot_T]
    form = None if isinstance(model, OwnEncoderWithHead) else FORMS[type(model).__name__][1]
    arguments, project = (form.arguments, form.project) if form else ({}, project_own)
    hidden_TH = encode_targets(model, batch)
    if hidden_TH is not None:
        return project(model, hidden_TH)
    encoded = model.base_model(batch.input_ids_BL, attention_mask=batch.attention_mask_BL, **arguments)
    hidden_BLH: Tensor = encoded.last_hidden_state
    return project(model, hidden_BLH.reshape(-1, hidden_BLH.shape[-1])[batch.slot_T])


def check_vocabulary(model: LanguageModel, vocab_size: int, tokens: Path) -> None:
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


def longest_row(model: LanguageModel) -> int:
    """Tokens that the model's positions allow."""
    if isinstance(model, OwnEncoderWithHead):
        return model.config.max_position_embeddings
    return longest_row_of(model.config)


def _tell_what_is_fixed(params: ModelParams) -> None:
    fixed = FAMILIES[params.family].fixed if params.family in FAMILIES else ()
    for it in fixed:
        if getattr(params, it.knob) != it.value:
            _LOG.warning("%s: `%s` of %s is %s, whatever params.yaml says", params.family, it.knob, it.where, it.value)
