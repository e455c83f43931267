"""Training that starts from a trained model: a folder, or a name on the hub.

The checkpoint determines shape and weights; the objective, the dropout rates and the tokens are ours. Its vocabulary is
compared with the tokens that it will be trained on.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import PretrainedConfig

from clozeline.encoder import architecture, checkpoints, families, own
from clozeline.encoder.families.layout import HEADS, Family, LanguageHead, TokenIds
from clozeline.language.detection import GENERATOR, ReplacedTokenPair, fresh_generator
from clozeline.language.models import LanguageModel, regularize
from clozeline.language.objectives import OBJECTIVES
from clozeline.params.pretraining import PretrainParams
from clozeline.records.published import inspect_model
from clozeline.system.errors import ArtifactError, DataError, ParamsError
from clozeline.tokenizing.tokenizer.vocabulary.opening import vocabulary_of

_LOG = logging.getLogger(__name__)
_TOKENIZER = "tokenizer.json"
# Special tokens that a tokenizer may have gained, such as [MASK] and [PAD]; more mean another vocabulary.
_MOST_NEW_TOKENS = 16
# Published tables are padded to a multiple of 64 or 128 rows.
_MOST_UNUSED_ROWS = 127
# Fields of a configuration that our training sets, whatever the checkpoint was saved with.
_OURS = ("is_decoder", "attention_type")
# Keyed by `model_type` in config.json and the head.
_BY_TYPE: Mapping[tuple[str, LanguageHead], Family] = {
    (config_class.model_type, head): family
    for family in families.FAMILIES.values()
    for head, config_class in family.forms.items()
}


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
    if isinstance(model, own.OwnModel) or not -_MOST_UNUSED_ROWS <= gained <= _MOST_NEW_TOKENS:
        raise ArtifactError(
            f"the tokens were not made with the tokenizer of {name}: {ids.vocab_size:,} kinds, not {trained:,}",
            do=f"tokenize with it: set `algorithm: existing` and `existing: {name}`",
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model.resize_token_embeddings(ids.vocab_size)
    model.config.pad_token_id = ids.pad_id
    _LOG.info("vocabulary of %s: resized from %s to %s rows", name, f"{trained:,}", f"{ids.vocab_size:,}")


def start_from(params: PretrainParams, ids: TokenIds, seed: int, tokenizer: Path | None = None) -> LanguageModel:
    """Return the model saved as `params.start`, in training mode. The global random state is unchanged.

    Shape and family are those of the checkpoint; only your own encoder must be of the family in `params.model`. The
    dropout rates are those of `params.model`, but if no step is taken, those of the checkpoint, to fine-tune it as
    published. A missing head and missing rows of the vocabulary are functions of `seed`. So is the generator of
    replaced-token detection, unless the checkpoint is a folder with a generator inside.

    Args:
        params: section `pretrain` with a `start`; `start_revision` is a commit there.
        ids: ids of the tokens to train on.
        tokenizer: folder of the tokenizer that made the tokens; compared with the checkpoint's, token by token.

    Raises:
        ArtifactError: the checkpoint is missing, damaged or of an unknown family, or does not match the tokens.
        ParamsError: the longest rows are longer than the model reads, or it cannot have `stochastic_depth`.
    """
    name = params.start or ""
    head = OBJECTIVES[params.objective].head
    checkpoint, facts = _found(name, params.start_revision)
    if tokenizer is not None:
        check_tokens(name, checkpoint.revision, tokenizer)
    start = _Start(checkpoint, facts.get("model_type", "none"), params, ids, seed)
    if start.model_type == own.OWN_MODEL_TYPE and head == "mlm" and checkpoint.is_folder:
        model: LanguageModel = checkpoints.opened_whole(checkpoints.Checkpoint(name, family=params.model.family), "mlm")
    else:
        model = start.trained(checkpoint, head, keeps_dropout=params.steps == 0)
    parts: Any = (model,) if HEADS[head].predicts_tokens else (model, start.generator(model))
    for part in parts:
        fit_vocabulary(part, name, ids, seed)
        longest = architecture.longest_row_of(part.config)
        if params.max_length > longest:
            raise ParamsError(
                f"`max_length: {params.max_length}` exceeds the {longest} positions of {name}", do="lower `max_length`"
            )
        regularize(part, params.model)
    return (model if HEADS[head].predicts_tokens else ReplacedTokenPair(*parts)).train()


def sources_of_start(name: str | None) -> list[Path]:
    """Return the files that determine the result of `start_from`; empty for a name on the hub, where a commit does."""
    files = Path(name).rglob("*") if name is not None else ()
    shown = (file for file in files if not any(part.startswith(".") for part in file.relative_to(str(name)).parts))
    return sorted(file for file in shown if file.is_file())


def token_ids(name: str, revision: str | None, head: LanguageHead) -> TokenIds:
    """Return the token ids of the model saved as `name`, which a plan needs before tokens exist.

    Raises:
        ArtifactError: the checkpoint is missing, or training of `head` cannot start from it.
    """
    checkpoint, facts = _found(name, revision)
    if facts.get("model_type") == own.OWN_MODEL_TYPE and head == "mlm":
        return own.read_config(name, facts).token_ids
    family = _known(checkpoint, facts.get("model_type", "none"), head)
    config: Any = family.forms[head].from_pretrained(**checkpoint.where)
    ids = (getattr(config, f"{role}_token_id", None) for role in ("pad", "cls", "sep"))
    return TokenIds(config.vocab_size, *(id_ or 0 for id_ in ids))


def _found(name: str, revision: str | None) -> tuple[checkpoints.Checkpoint, dict[str, Any]]:
    """Return the checkpoint at the commit that `revision` stands for now, and its config.json."""
    if Path(name).is_dir() and not (Path(name) / "config.json").is_file():
        raise ArtifactError(
            f"{name} holds no model: no config.json in it",
            do="correct `start`: a folder that `pretrain` wrote, or that was downloaded whole",
        )
    checkpoint, facts = checkpoints.find_checkpoint(name, revision, named=f"`start: {name}`")
    inspect_model(name, checkpoint.revision)
    return checkpoint, facts


@dataclass(frozen=True)
class _Start:
    """A checkpoint to start from, and what it is made for."""

    checkpoint: checkpoints.Checkpoint
    model_type: str
    params: PretrainParams
    ids: TokenIds
    seed: int

    def trained(
        self, checkpoint: checkpoints.Checkpoint, head: LanguageHead, *, keeps_dropout: bool = False
    ) -> checkpoints.AnyModel:
        """Return the model saved as `checkpoint`: that of the start, or its generator."""
        params, name = self.params.model, checkpoint.name
        family = _known(checkpoint, self.model_type, head)
        config = family.forms[head].from_pretrained(**checkpoint.where)
        fresh = family.configure(head, params, self.ids)
        ours, theirs = (getattr(it, "attention_type", None) for it in (fresh, config))
        if ours != theirs:
            _LOG.warning("%s: `attention_type` is set to `%s`, not `%s`; the weights are the same", name, ours, theirs)
        changed = {field: getattr(fresh, field) for field in _OURS if hasattr(fresh, field)}
        for field, value in (changed | ({} if keeps_dropout else family.dropouts(params))).items():
            setattr(config, field, value)
        _check_padding(config, name, self.ids)
        model, missing = checkpoints.opened(checkpoint, config, head, self.seed)
        _tell_what_is_fresh(model, missing, name)
        return model

    def generator(self, discriminator: Any) -> Any:
        inner = Path(self.checkpoint.name) / GENERATOR
        if (inner / "config.json").is_file():
            return self.trained(checkpoints.Checkpoint(str(inner)), "mlm")
        _LOG.warning("%s has no generator: a new one is drawn at random", self.checkpoint.name)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return fresh_generator(discriminator, self.params.model.generator_fraction)


def _known(checkpoint: checkpoints.Checkpoint, model_type: str, head: LanguageHead) -> Family:
    if (model_type, head) not in _BY_TYPE:
        able = sorted(known for known, its_head in _BY_TYPE if its_head == head)
        raise ArtifactError(
            f"training for `{head}` cannot start from {checkpoint.name} ({model_type}), only from {', '.join(able)}",
            do="start from another checkpoint, or set `start: null`",
        )
    return _BY_TYPE[model_type, head]


def _check_padding(config: PretrainedConfig, name: str, ids: TokenIds) -> None:
    """Check that the padding tokens match. A token that is new to the checkpoint is accepted, unless positions are
    counted from it.
    """
    is_new = ids.pad_id >= config.vocab_size and architecture.first_position(config) == 0
    if config.pad_token_id not in (None, ids.pad_id) and not is_new:
        raise ArtifactError(
            f"the tokens are not of the tokenizer of {name}, which pads with {config.pad_token_id}, not {ids.pad_id}",
            do=f"tokenize with it: set `algorithm: existing` and `existing: {name}`",
        )


def _tell_what_is_fresh(model: checkpoints.AnyModel, missing: list[str], name: str) -> None:
    in_encoder = [key for key in missing if key.startswith(f"{model.prefix}.")]
    checkpoints.check_whole(name, in_encoder, do="download or save it again")
    if missing:
        given = (name, ", ".join(model.config.architectures or ["no class"]), len(missing), min(missing))
        _LOG.warning("%s (%s) has no trained head of this kind: %s weights are drawn at random, such as %s", *given)
