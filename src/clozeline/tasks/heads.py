"""A pre-trained encoder under a head of its own for a task: built, checked, saved."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from clozeline.encoder.checkpoints import Checkpoint, opened
from clozeline.encoder.families import HeadKind
from clozeline.encoder.model import Model
from clozeline.encoder.stock import StockModel
from clozeline.encoder.stock_classes import longest_row_of
from clozeline.errors import ArtifactError, ParamsError
from clozeline.tokenizer.folder import write
from clozeline.tokenizer.published.opening import open_published

_LOG = logging.getLogger(__name__)
TaskModel: TypeAlias = Model | StockModel
"""What a kind of task trains, for rooms that know nothing of transformers."""
_LEAST_OF_VOCABULARY = 0.95
"""Tables of embeddings are rounded up; by more than this, the tokenizer is hardly the model's."""


def build(encoder: Path, kind: HeadKind, seed: int, changes: Mapping[str, object]) -> TaskModel:
    """The encoder's weights under a fresh head, which is a function of `seed`; the global random state stays.

    Args:
        encoder: folder of a trained encoder.
        changes: what the configuration says of the head (`id2label`, …); names that a family has not are left out,
            apart from labels, which every configuration has.

    Raises:
        ArtifactError: the folder holds no model, its family has no such head, or it asks for code of its own.
    """
    if not (encoder / "config.json").is_file():
        raise ArtifactError(
            f"{encoder} holds no model",
            given=f"no {encoder / 'config.json'}",
            expected="a folder that `pretrain` wrote",
            do="run `dvc repro pretrain`",
        )
    checkpoint = Checkpoint(str(encoder))
    config = checkpoint.config()
    for name, value in changes.items():
        if hasattr(config, name):
            setattr(config, name, value)
    model, missing = opened(checkpoint, config, kind, seed)
    drawn = model.of_encoder(missing)
    if drawn:
        raise ArtifactError(
            f"{encoder} does not hold all weights of its encoder",
            given=f"{len(drawn)} missing, such as {drawn[0]}",
            expected="every weight (a random one would pass for a trained one)",
            do="train or save it again",
        )
    return model.eval()


def tells_pairs_apart(model: TaskModel) -> bool:
    """Whether it has an embedding for the second text of a pair, beside the separator between them."""
    return int(getattr(model.config, "type_vocab_size", 0) or 0) > 1


def check_fit(model: TaskModel, encoder: Path, *, vocab_size: int, max_length: int, pad_id: int) -> None:
    """Raises:
    ArtifactError: the folder's tokenizer was made for another model.
    ParamsError: rows of `max_length` tokens are longer than the model can read.
    """
    if vocab_size > model.config.vocab_size:
        raise ArtifactError(
            f"{encoder} holds the tokenizer of another model",
            given=f"a tokenizer of {vocab_size:,} tokens",
            expected=f"at most {model.config.vocab_size:,}: the rows of the model's embedding",
            do="save model and tokenizer of the same training: `dvc repro pretrain`",
        )
    if model.config.pad_token_id not in (None, pad_id):
        raise ArtifactError(
            f"{encoder} holds the tokenizer of another model",
            given=f"a tokenizer that pads with token {pad_id}",
            expected=f"token {model.config.pad_token_id}, as config.json says",
            do="save model and tokenizer of the same training: `dvc repro pretrain`",
        )
    if vocab_size < _LEAST_OF_VOCABULARY * model.config.vocab_size:
        _LOG.warning(
            "%s: the tokenizer has %d tokens and the model rows for %d: are they of the same training?",
            *(encoder, vocab_size, model.config.vocab_size),
        )
    longest = longest_row_of(model.config)
    if max_length > longest:
        raise ParamsError(
            "params.yaml: `max_length` of the task is longer than the encoder can read",
            given=max_length,
            expected=f"at most {longest}",
            do="lower it, or raise `pretrain.model.max_position_embeddings`",
        )


def save(model: TaskModel, encoder: Path, max_length: int, out: Path, *, with_types: bool = False) -> None:
    """Fill `out` with what stock Auto classes load: the model, and the encoder's tokenizer.

    The tokenizer remembers `max_length`: texts are cut in use where they were cut in training and in the test. And
    `with_types` that it is to tell the texts of a pair apart, if the model has learned from that.
    """
    model.save(out)
    tokenizer = open_published(str(encoder))
    tokenizer.model_max_length = max_length
    if with_types:
        tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
        tokenizer.init_kwargs["model_input_names"] = tokenizer.model_input_names
    write(tokenizer, out)
