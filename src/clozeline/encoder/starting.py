"""Training that goes on from a trained model: a folder, or a name on the hub.

The checkpoint brings its shape and its weights; the objective, the dropouts and the tokens are ours.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from transformers import PretrainedConfig

from clozeline.encoder.checkpoints import Checkpoint, first_line, opened
from clozeline.encoder.detection import GENERATOR, ReplacedTokenPair, fresh_generator
from clozeline.encoder.encoders import OWN_MODEL_TYPE, load_own
from clozeline.encoder.families import FAMILIES, Family, Form, Objective, TokenIds
from clozeline.encoder.language_model import LanguageModel, longest_row
from clozeline.encoder.model import Model
from clozeline.encoder.regularization import regularize
from clozeline.encoder.stock import StockModel
from clozeline.encoder.stock_classes import first_position
from clozeline.encoder.vocabulary import check_tokens, fit_vocabulary
from clozeline.errors import ArtifactError, ParamsError
from clozeline.params import ModelParams
from clozeline.tokenizer.foreign import inspect_model
from clozeline.tokenizer.hub import asking_hub

_LOG = logging.getLogger(__name__)
_OURS = ("is_decoder", "attention_type")
"""Of a configuration: what our way of training asks for, whatever the checkpoint was saved with."""

_BY_TYPE: Mapping[tuple[str, Objective], tuple[Family, Form]] = MappingProxyType(
    {
        (form.config_class.model_type, objective): (family, form)
        for family in FAMILIES.values()
        for objective, form in family.forms.items()
    }
)
"""Keyed by what config.json calls `model_type`, and the objective."""


def start_from(
    name: str,
    revision: str | None,
    params: ModelParams,
    objective: Objective,
    ids: TokenIds,
    *,
    seed: int,
    max_length: int,
    tokenizer: Path | None = None,
    keeps_dropout: bool = False,
) -> LanguageModel:
    """The model saved as `name`, ready to be trained on; the global random state stays as it was.

    A head that the checkpoint has not, and rows of the vocabulary that it has not, are functions of `seed`. So is the
    generator of replaced-token detection, where the checkpoint is no folder with one inside.

    Args:
        name: a folder, or a name on the hub; `revision` is a commit there.
        params: its rates of dropout are used; its shape and its family are not, the checkpoint has its own.
        ids: of the tokens that will be trained on.
        max_length: tokens of the longest row.
        tokenizer: folder of the tokenizer that made the tokens; compared with the checkpoint's, token by token.
        keeps_dropout: its own rates stay in its configuration: for what is fine-tuned as it was published.

    Raises:
        ArtifactError: there is no such checkpoint, it is damaged or of an unknown family, or the tokens are not its.
        ParamsError: rows of `max_length` are longer than it reads, or `params.stochastic_depth` is not for it.
    """
    checkpoint = Checkpoint(name, revision)
    model_type = _facts(checkpoint).get("model_type", "none")
    if tokenizer is not None:
        check_tokens(name, revision, tokenizer)
    model: LanguageModel
    if model_type == OWN_MODEL_TYPE and objective == "mlm":
        model = load_own(Path(name))
    else:
        model = _trained(checkpoint, model_type, objective, params, ids, seed, keeps_dropout=keeps_dropout)
    parts: Any = (
        (model, _generator(checkpoint, model, model_type, params, ids, seed)) if objective == "rtd" else (model,)
    )
    for part in parts:
        fit_vocabulary(part, name, ids, seed)
        _check_length(part, name, max_length)
        regularize(part, params)
    return (ReplacedTokenPair(*parts) if objective == "rtd" else model).train()


def sources_of_start(name: str | None) -> list[Path]:
    """The files that decide what `start_from` gives; none of a name on the hub, where a commit does."""
    files = Path(name).rglob("*") if name is not None else ()
    return sorted(file for file in files if file.is_file() and not _is_hidden(file.relative_to(str(name))))


def commit_of(model: LanguageModel) -> str | None:
    """Of the hub, as it was when `model` was loaded from there."""
    commit: str | None = getattr(model.config, "_commit_hash", None)
    return commit


def _is_hidden(file: Path) -> bool:
    return any(part.startswith(".") for part in file.parts)


def token_ids(name: str, revision: str | None, objective: Objective) -> TokenIds:
    """Those that the model saved as `name` reads: what a plan needs before there are tokens.

    Raises:
        ArtifactError: there is no such checkpoint, or training with `objective` cannot go on from it.
    """
    checkpoint = Checkpoint(name, revision)
    facts = _facts(checkpoint)
    if facts.get("model_type") == OWN_MODEL_TYPE and objective == "mlm":
        return TokenIds(**facts["ids"])
    _, form = _known(checkpoint, facts.get("model_type", "none"), objective)
    config = form.config_class.from_pretrained(**checkpoint.where)
    ids = (getattr(config, f"{role}_token_id", None) for role in ("pad", "cls", "sep"))
    return TokenIds(config.vocab_size, *(id_ or 0 for id_ in ids))


def _facts(checkpoint: Checkpoint) -> dict[str, Any]:
    if checkpoint.is_folder and not (Path(checkpoint.name) / "config.json").is_file():
        raise ArtifactError(
            f"{checkpoint.name} holds no model",
            given="no config.json in it",
            expected="a folder that `pretrain` wrote, or that was downloaded whole",
            do="check `pretrain.start` in params.yaml",
        )
    try:
        with asking_hub(checkpoint.name):
            facts, _ = PretrainedConfig.get_config_dict(**checkpoint.where)
    except OSError as error:
        at = f" --revision {checkpoint.revision}" if checkpoint.revision else ""
        raise ArtifactError(
            f"params.yaml: `pretrain.start` is no folder, and cannot be had from the hub: {first_line(error)}",
            given=checkpoint.name,
            expected="a folder with a model, or a name on the hub and a network",
            do=f"where there is a network, `hf download {checkpoint.name}{at} --local-dir FOLDER`; then start: FOLDER",
        ) from error
    inspect_model(checkpoint.name, checkpoint.revision)
    return dict(facts)


def _trained(
    checkpoint: Checkpoint,
    model_type: str,
    objective: Objective,
    params: ModelParams,
    ids: TokenIds,
    seed: int,
    *,
    keeps_dropout: bool = False,
) -> Model | StockModel:
    family, form = _known(checkpoint, model_type, objective)
    config = form.config_class.from_pretrained(**checkpoint.where)
    _tell_how_it_attends(config, form.configure(params, ids), checkpoint.name)
    _make_ours(config, form.configure(params, ids), {} if keeps_dropout else family.dropouts(params))
    _check_padding(config, checkpoint.name, ids)
    model, missing = opened(checkpoint, config, objective, seed)
    _tell_what_is_fresh(model, missing, checkpoint.name)
    return model


def _known(checkpoint: Checkpoint, model_type: str, objective: Objective) -> tuple[Family, Form]:
    if (model_type, objective) not in _BY_TYPE:
        able = sorted(known for known, its_objective in _BY_TYPE if its_objective == objective)
        raise ArtifactError(
            f"{checkpoint.name} is of a kind that training with objective `{objective}` cannot go on from",
            given=f"model_type {model_type}",
            expected=f"one of: {', '.join(able)}",
            do="start from another checkpoint, or set `pretrain.start: null`",
        )
    return _BY_TYPE[model_type, objective]


def _generator(
    checkpoint: Checkpoint, discriminator: Any, model_type: str, params: ModelParams, ids: TokenIds, seed: int
) -> Any:
    inner = Path(checkpoint.name) / GENERATOR
    if (inner / "config.json").is_file():
        return _trained(Checkpoint(str(inner)), model_type, "mlm", params, ids, seed)
    _LOG.warning("%s has no generator beside its encoder: a fresh one", checkpoint.name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return fresh_generator(discriminator, params.generator_fraction)


def _make_ours(config: PretrainedConfig, fresh: PretrainedConfig, dropouts: dict[str, float]) -> None:
    ours = {name: getattr(fresh, name) for name in _OURS if hasattr(fresh, name)}
    for name, value in (ours | dropouts).items():
        setattr(config, name, value)


def _tell_how_it_attends(config: PretrainedConfig, fresh: PretrainedConfig, name: str) -> None:
    ours, theirs = (getattr(it, "attention_type", None) for it in (fresh, config))
    if ours != theirs:
        _LOG.warning("%s: `attention_type` is `%s` here, not `%s`; the weights are the same", name, ours, theirs)


def _check_padding(config: PretrainedConfig, name: str, ids: TokenIds) -> None:
    """A padding token that the checkpoint has not yet is as good as its own, unless positions are counted by it."""
    is_new = ids.pad_id >= config.vocab_size and first_position(config) == 0
    if config.pad_token_id not in (None, ids.pad_id) and not is_new:
        raise ArtifactError(
            f"the tokens were not made with the tokenizer of {name}",
            given=f"padding is token {ids.pad_id}",
            expected=f"token {config.pad_token_id}, as in the checkpoint",
            do=f"set `tokenize.algorithm: existing` and `tokenize.existing: {name}`",
        )


def _tell_what_is_fresh(model: Model | StockModel, missing: list[str], name: str) -> None:
    in_encoder = [key for key in missing if key.startswith(f"{model.prefix}.")]
    if in_encoder:
        raise ArtifactError(
            f"{name} does not hold all weights of its encoder",
            given=f"{len(in_encoder)} missing, such as {in_encoder[0]}",
            expected="every weight (a random one would pass for a trained one)",
            do="download or save it again",
        )
    if missing:
        given = (name, ", ".join(model.config.architectures or ["no class"]), len(missing), min(missing))
        _LOG.warning("%s (%s) has no trained head of this kind: %s of its weights are fresh, such as %s", *given)


def _check_length(model: LanguageModel, name: str, max_length: int) -> None:
    if max_length > longest_row(model):
        raise ParamsError(
            "params.yaml: `pretrain.max_length` is longer than the model that training goes on from can read",
            given=max_length,
            expected=f"at most {longest_row(model)}, the positions of {name}",
            do="lower it",
        )
