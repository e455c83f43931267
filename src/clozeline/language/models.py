"""Language models, which predict masked, next or replaced tokens: building, loading, saving and running them.

Regularization on top of a model's own dropout acts in training only and is never saved.

Shapes: B rows, L longest row, T targets, H hidden, V vocabulary.
"""

import json
import logging
import shutil
from pathlib import Path
from typing import Any, TypeAlias, get_args

import torch
from torch import Tensor

from clozeline.encoder import architecture, checkpoints, families, own
from clozeline.encoder.families.layout import HEADS, LanguageHead, TokenIds
from clozeline.encoder.model import EncoderModel
from clozeline.language.detection import GENERATOR, ReplacedTokenPair, fresh_generator, load_pair, parts_of
from clozeline.language.objectives import TargetBatch
from clozeline.params.model import ModelParams, is_own
from clozeline.system.errors import ArtifactError, ParamsError

_LOG = logging.getLogger(__name__)

_SKIPPABLE = [name for name, family in families.FAMILIES.items() if family.is_pre_norm]

LanguageModel: TypeAlias = checkpoints.AnyModel | ReplacedTokenPair


def regularize(model: Any, params: ModelParams) -> None:
    """Set head dropout and stochastic depth on `model`, whether it is new or loaded.

    The rate of stochastic depth rises linearly from the first layer to the last (Huang et al. 2016, equation 4).

    Raises:
        ParamsError: stochastic depth is set, but the layers are not known to be pre-norm.
    """
    model.head_dropout = params.head_dropout
    if not params.stochastic_depth:
        return
    if not (isinstance(model, EncoderModel) and model.encoder.architecture.is_pre_norm):
        raise ParamsError(
            f"`stochastic_depth` needs pre-norm layers, which {type(model.base_model).__name__} does not have",
            do=f"set `stochastic_depth: 0.0`, or choose a family of {', '.join(_SKIPPABLE)}",
        )
    layers: Any = model.encoder.layers
    for number, layer in enumerate(layers, start=1):
        layer.skip_rate = params.stochastic_depth * number / len(layers)


def build(params: ModelParams, head: LanguageHead, ids: TokenIds, seed: int) -> LanguageModel:
    """Return a model with random weights, a function of `seed`. The global random state is unchanged.

    Raises:
        ParamsError: `params.family` is not a row of FAMILIES, has no `head`, or cannot have
            `params.stochastic_depth`.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _fresh(params, head, ids)
    for part in parts_of(model):
        regularize(part, params)
    return model


def outline(params: ModelParams, head: LanguageHead, vocab_size: int) -> LanguageModel:
    """Build the model that `params` describe, without allocating its weights.

    Raises:
        ParamsError: the family is unknown, or has no `head`.
    """
    with torch.device("meta"):
        return build(params, head, TokenIds(vocab_size, 0, 2, 3), seed=0)


def _fresh(params: ModelParams, head: LanguageHead, ids: TokenIds) -> LanguageModel:
    if is_own(params.family) and head == "mlm":
        return own.fresh_own(params, ids)
    chosen = families.FAMILIES.get(params.family)
    if chosen is None or head not in chosen.forms:
        able = [name for name, family in families.FAMILIES.items() if head in family.forms]
        raise ParamsError(
            f"`family: {params.family}` has no head for `{head}`; these have: {', '.join(able)}",
            do="choose one of these, or another `objective`",
        )
    for fixed in chosen.fixed:
        if getattr(params, fixed.knob) != fixed.value:
            told = (params.family, fixed.knob, fixed.where, fixed.value)
            _LOG.warning("%s: `%s` of %s is %s; the value given has no effect", *told)
    config = chosen.configure(head, params, ids)
    if config.model_type not in families.LAYOUTS:
        return checkpoints.fresh_stock(config, head)
    model = EncoderModel(config, head)
    if HEADS[head].predicts_tokens:
        return model
    return ReplacedTokenPair(model, fresh_generator(model, params.generator_fraction))


def load(folder: Path, family: str | None = None) -> LanguageModel:
    """Load a saved model in evaluation mode.

    Args:
        family: value of `pretrain.model.family` in the params: your own encoder is opened only if it matches.

    Raises:
        ArtifactError: the folder holds no language model of a known family, or one built by code other than `family`.
    """
    config = folder / "config.json"
    if not config.is_file():
        raise ArtifactError(f"{folder} holds no model: no {config}", do="run `dvc repro pretrain`")
    facts = json.loads(config.read_text(encoding="utf-8"))
    if facts.get("model_type") == own.OWN_MODEL_TYPE:
        return checkpoints.opened_whole(checkpoints.Checkpoint(str(folder), family=family), "mlm").eval()
    name = (facts.get("architectures") or ["no architecture"])[0]
    if name not in families.LANGUAGE_HEADS:
        raise ArtifactError(
            f"{folder} holds a {name}, not one of {', '.join(sorted(families.LANGUAGE_HEADS))} or of your own",
            do="pre-train one of them, or add a row for it to clozeline/encoder/families/",
        )
    head = families.LANGUAGE_HEADS[name]
    if not HEADS[head].predicts_tokens:
        return load_pair(folder, head).eval()
    return checkpoints.opened_whole(checkpoints.Checkpoint(str(folder)), head).eval()


def head_of(model: LanguageModel) -> LanguageHead:
    head: LanguageHead = parts_of(model)[0].kind
    assert head in get_args(LanguageHead)
    return head


def save(model: LanguageModel, tokenizer: Path, out: Path, weights: dict[str, Tensor] | None = None) -> None:
    """Write what stock `AutoModelForMaskedLM` (causal models: `AutoModelForCausalLM`) and `AutoTokenizer` load.

    `AutoModel` takes the encoder out of it. For replaced-token detection `out` holds the discriminator
    (`AutoModelForPreTraining`); its generator, a masked language model, is in a subfolder.

    `weights`: used instead of the model's own, when those are divided among processes.
    """
    model.save(out, weights)
    for folder in (out, *out.glob(GENERATOR)):
        _save_tokenizer(tokenizer, folder)


def save_encoder(model: LanguageModel, tokenizer: Path, out: Path, weights: dict[str, Tensor] | None = None) -> None:
    """Write the encoder without its head: what stock `AutoModel` and `AutoTokenizer` load.

    `weights`: weights of `model` to use instead of its own.
    """
    model.save_encoder(out, weights)
    _save_tokenizer(tokenizer, out)


def _save_tokenizer(tokenizer: Path, out: Path) -> None:
    for file in sorted(tokenizer.iterdir()):
        shutil.copyfile(file, out / file.name)


def target_logits(model: LanguageModel, batch: TargetBatch) -> Tensor:
    """Return `logits_TV`. The head, and where possible the last layer, compute the targets alone, so that their cost
    does not grow with B × L. For replaced-token detection these are the generator's logits.
    """
    asked = parts_of(model)[-1]
    logits_TV: Tensor = asked(batch.input_ids_BL, batch.attention_mask_BL, positions=batch.positions).logits
    return logits_TV


def check_vocabulary(model: LanguageModel, vocab_size: int, tokens: Path) -> None:
    """Check the size of the model's vocabulary against that of the tokens.

    Raises:
        ArtifactError: the sizes differ.
    """
    if model.config.vocab_size != vocab_size:
        raise ArtifactError(
            f"{tokens} has {vocab_size:,} kinds of tokens, the model's embedding {model.config.vocab_size:,} rows",
            do="make both from one tokenizer: `dvc repro pretrain`",
        )


def shape_of_encoder(model: LanguageModel) -> architecture.Shape | None:
    """Return depth and widths of the encoder; None for your own encoder, of which only the width is known."""
    part = parts_of(model)[0]
    if isinstance(part, own.OwnModel):
        return None
    if isinstance(part, EncoderModel):
        ours = part.encoder.architecture
        return architecture.Shape(len(ours.layers), ours.hidden_size, ours.num_heads, ours.intermediate_size)
    stock = part.config
    return architecture.Shape(
        stock.num_hidden_layers, stock.hidden_size, stock.num_attention_heads, stock.intermediate_size
    )
