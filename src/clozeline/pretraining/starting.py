"""Training that starts from a trained model: a folder, or a name on the hub.

The checkpoint determines shape and weights; the objective, the dropout rates and the tokens are ours. Its vocabulary is
compared with the tokens that it will be trained on.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import PretrainedConfig

from clozeline.encoder.architecture import first_position
from clozeline.encoder.checkpoints import AnyModel, Checkpoint, check_whole, first_line, opened, opened_whole
from clozeline.encoder.families import FAMILIES
from clozeline.encoder.families.layout import Family, FamilyForm, LanguageHead, TokenIds
from clozeline.encoder.own import OWN_MODEL_TYPE, OwnModel, read_config
from clozeline.language.detection import GENERATOR, ReplacedTokenPair, fresh_generator
from clozeline.language.models import LanguageModel, longest_row, regularize
from clozeline.params.model import ModelParams
from clozeline.records.published import asking_hub, inspect_model, pinned
from clozeline.system.errors import ArtifactError, DataError, ParamsError
from clozeline.tokenizing.tokenizer.vocabulary.opening import vocabulary_of

_LOG = logging.getLogger(__name__)
_TOKENIZER = "tokenizer.json"
_MOST_NEW_TOKENS = 16
"""Special tokens that a tokenizer may have gained, such as [MASK] and [PAD]; more mean another vocabulary."""
_MOST_UNUSED_ROWS = 127
"""Published tables are padded to a multiple of 64 or 128 rows."""
_OURS = ("is_decoder", "attention_type")
"""Fields of a configuration that our training sets, whatever the checkpoint was saved with."""
_BY_TYPE: Mapping[tuple[str, LanguageHead], tuple[Family, FamilyForm]] = MappingProxyType(
    {
        (form.config_class.model_type, head): (family, form)
        for family in FAMILIES.values()
        for head, form in family.forms.items()
    }
)
"""Keyed by `model_type` in config.json and the head."""


def check_tokens(name: str, revision: str | None, tokenizer: Path) -> None:
    """Check that every token of the checkpoint has the same id here. If it has no tokenizer to compare, only warn.

    Raises:
        ArtifactError: a token differs.
    """
    try:
        theirs = vocabulary_of(name, revision)
    except DataError as error:
        _LOG.warning("%s: its tokenizer cannot be compared with the one that made the tokens: %s", name, error.cause)
        return
    ours = Tokenizer.from_file(str(tokenizer / _TOKENIZER)).get_vocab()
    for token, number in sorted(theirs.items(), key=lambda item: item[1]):
        if ours.get(token) != number:
            raise ArtifactError(
                f"the tokens were not made with the tokenizer of {name}: {token!r} is {ours.get(token)}, not {number}",
                do=f"tokenize with it: set `algorithm: existing` and `existing: {name}`",
            )


def fit_vocabulary(model: Any, name: str, ids: TokenIds, seed: int) -> None:
    """Give `model` a row for each token: new ones around the mean of the others, unused ones at the end dropped.

    New rows are drawn, by `seed`, from a normal distribution around the mean of the trained ones (Hewitt 2021,
    "Initializing new word embeddings"), narrow enough that predictions of old tokens hardly change.

    Raises:
        ArtifactError: the sizes differ by more than a few special tokens or a padded end.
    """
    trained: int = model.config.vocab_size
    gained = ids.vocab_size - trained
    if gained == 0:
        return
    if isinstance(model, OwnModel) or not -_MOST_UNUSED_ROWS <= gained <= _MOST_NEW_TOKENS:
        raise ArtifactError(
            f"the tokens were not made with the tokenizer of {name}: {ids.vocab_size:,} kinds, not {trained:,}",
            do=f"tokenize with it: set `algorithm: existing` and `existing: {name}`",
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model.resize_token_embeddings(ids.vocab_size)
    model.config.pad_token_id = ids.pad_id
    _LOG.info("vocabulary of %s: resized from %s to %s rows", name, f"{trained:,}", f"{ids.vocab_size:,}")


def start_from(
    name: str,
    revision: str | None,
    params: ModelParams,
    head: LanguageHead,
    ids: TokenIds,
    *,
    seed: int,
    max_length: int,
    tokenizer: Path | None = None,
    keeps_dropout: bool = False,
) -> LanguageModel:
    """Return the model saved as `name`, in training mode. The global random state is unchanged.

    A missing head and missing rows of the vocabulary are functions of `seed`. So is the generator of replaced-token
    detection, unless the checkpoint is a folder with a generator inside.

    Args:
        name: a folder, or a name on the hub; `revision` is a commit there.
        params: gives the dropout rates; shape and family are those of the checkpoint. Only your own encoder must be of
            the family in `params`.
        ids: ids of the tokens to train on.
        max_length: tokens of the longest row.
        tokenizer: folder of the tokenizer that made the tokens; compared with the checkpoint's, token by token.
        keeps_dropout: keeps the checkpoint's dropout rates in its configuration, to fine-tune it as published.

    Raises:
        ArtifactError: the checkpoint is missing, damaged or of an unknown family, or does not match the tokens.
        ParamsError: rows of `max_length` are longer than the model reads, or it cannot have `params.stochastic_depth`.
    """
    checkpoint, facts = _found(name, revision)
    model_type = facts.get("model_type", "none")
    if tokenizer is not None:
        check_tokens(name, checkpoint.revision, tokenizer)
    model: LanguageModel
    if model_type == OWN_MODEL_TYPE and head == "mlm" and checkpoint.is_folder:
        model = opened_whole(Checkpoint(name, family=params.family), "mlm")
    else:
        model = _trained(checkpoint, model_type, head, params, ids, seed, keeps_dropout=keeps_dropout)
    parts: Any = (model, _generator(checkpoint, model, model_type, params, ids, seed)) if head == "rtd" else (model,)
    for part in parts:
        fit_vocabulary(part, name, ids, seed)
        _check_length(part, name, max_length)
        regularize(part, params)
    return (ReplacedTokenPair(*parts) if head == "rtd" else model).train()


def sources_of_start(name: str | None) -> list[Path]:
    """Return the files that determine the result of `start_from`; empty for a name on the hub, where a commit does."""
    files = Path(name).rglob("*") if name is not None else ()
    return sorted(file for file in files if file.is_file() and not _is_hidden(file.relative_to(str(name))))


def _is_hidden(file: Path) -> bool:
    return any(part.startswith(".") for part in file.parts)


def token_ids(name: str, revision: str | None, head: LanguageHead) -> TokenIds:
    """Return the token ids of the model saved as `name`, which a plan needs before tokens exist.

    Raises:
        ArtifactError: the checkpoint is missing, or training of `head` cannot start from it.
    """
    checkpoint, facts = _found(name, revision)
    if facts.get("model_type") == OWN_MODEL_TYPE and head == "mlm":
        return read_config(name, facts).token_ids
    _, form = _known(checkpoint, facts.get("model_type", "none"), head)
    config = form.config_class.from_pretrained(**checkpoint.where)
    ids = (getattr(config, f"{role}_token_id", None) for role in ("pad", "cls", "sep"))
    return TokenIds(config.vocab_size, *(id_ or 0 for id_ in ids))


def _found(name: str, revision: str | None) -> tuple[Checkpoint, dict[str, Any]]:
    """Return the checkpoint at the commit that `revision` stands for now, and its config.json."""
    if Path(name).is_dir() and not (Path(name) / "config.json").is_file():
        raise ArtifactError(
            f"{name} holds no model: no config.json in it",
            do="correct `start`: a folder that `pretrain` wrote, or that was downloaded whole",
        )
    try:
        with asking_hub(name):
            checkpoint = Checkpoint(name, pinned(name, revision))
            facts, _ = PretrainedConfig.get_config_dict(**checkpoint.where)
    except OSError as error:
        at = f" --revision {revision}" if revision else ""
        raise ArtifactError(
            f"`start: {name}` is not a folder, and cannot be downloaded from the hub: {first_line(error)}",
            do=f"run `hf download {name}{at} --local-dir FOLDER` where there is a network, and set `start`",
        ) from error
    inspect_model(name, checkpoint.revision)
    return checkpoint, dict(facts)


def _trained(
    checkpoint: Checkpoint,
    model_type: str,
    head: LanguageHead,
    params: ModelParams,
    ids: TokenIds,
    seed: int,
    *,
    keeps_dropout: bool = False,
) -> AnyModel:
    family, form = _known(checkpoint, model_type, head)
    config = form.config_class.from_pretrained(**checkpoint.where)
    _tell_how_it_attends(config, form.configure(params, ids), checkpoint.name)
    _make_ours(config, form.configure(params, ids), {} if keeps_dropout else family.dropouts(params))
    _check_padding(config, checkpoint.name, ids)
    model, missing = opened(checkpoint, config, head, seed)
    _tell_what_is_fresh(model, missing, checkpoint.name)
    return model


def _known(checkpoint: Checkpoint, model_type: str, head: LanguageHead) -> tuple[Family, FamilyForm]:
    if (model_type, head) not in _BY_TYPE:
        able = sorted(known for known, its_head in _BY_TYPE if its_head == head)
        raise ArtifactError(
            f"training for `{head}` cannot start from {checkpoint.name} ({model_type}), only from {', '.join(able)}",
            do="start from another checkpoint, or set `start: null`",
        )
    return _BY_TYPE[model_type, head]


def _generator(
    checkpoint: Checkpoint, discriminator: Any, model_type: str, params: ModelParams, ids: TokenIds, seed: int
) -> Any:
    inner = Path(checkpoint.name) / GENERATOR
    if (inner / "config.json").is_file():
        return _trained(Checkpoint(str(inner)), model_type, "mlm", params, ids, seed)
    _LOG.warning("%s has no generator: a new one is drawn at random", checkpoint.name)
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
        _LOG.warning("%s: `attention_type` is set to `%s`, not `%s`; the weights are the same", name, ours, theirs)


def _check_padding(config: PretrainedConfig, name: str, ids: TokenIds) -> None:
    """Check that the padding tokens match. A token that is new to the checkpoint is accepted, unless positions are
    counted from it.
    """
    is_new = ids.pad_id >= config.vocab_size and first_position(config) == 0
    if config.pad_token_id not in (None, ids.pad_id) and not is_new:
        raise ArtifactError(
            f"the tokens are not of the tokenizer of {name}, which pads with {config.pad_token_id}, not {ids.pad_id}",
            do=f"tokenize with it: set `algorithm: existing` and `existing: {name}`",
        )


def _tell_what_is_fresh(model: AnyModel, missing: list[str], name: str) -> None:
    in_encoder = [key for key in missing if key.startswith(f"{model.prefix}.")]
    check_whole(name, in_encoder, do="download or save it again")
    if missing:
        given = (name, ", ".join(model.config.architectures or ["no class"]), len(missing), min(missing))
        _LOG.warning("%s (%s) has no trained head of this kind: %s weights are drawn at random, such as %s", *given)


def _check_length(model: LanguageModel, name: str, max_length: int) -> None:
    if max_length > longest_row(model):
        raise ParamsError(
            f"`max_length: {max_length}` exceeds the {longest_row(model)} positions of {name}", do="lower `max_length`"
        )
