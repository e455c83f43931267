"""Build, check and save a pre-trained encoder with the head of a task."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from torch import Tensor, nn

from clozeline.encoder.checkpoints import AnyModel, Checkpoint, check_whole, opened
from clozeline.encoder.families import HeadKind
from clozeline.encoder.model import Model
from clozeline.encoder.stock_classes import longest_row_of
from clozeline.errors import ArtifactError, ParamsError
from clozeline.tasks import mean_layer
from clozeline.tasks.encoded import EncodedBatch
from clozeline.tokenizer.folder import write
from clozeline.tokenizer.vocabulary.opening import open_published

_LOG = logging.getLogger(__name__)
TaskModel: TypeAlias = AnyModel
"""The model that a kind of task trains, for rooms that do not import transformers."""
_LEAST_OF_VOCABULARY = 0.95
"""Smallest plausible ratio of tokens to rows of the embedding, which is rounded up."""


def build(
    encoder: Path,
    kind: HeadKind,
    seed: int,
    changes: Mapping[str, object],
    *,
    family: str | None = None,
    reads_mean: bool = False,
) -> TaskModel:
    """Return the encoder with a fresh head drawn from `seed`, without touching the global random state.

    Args:
        encoder: folder of a trained encoder.
        changes: configuration of the head (`id2label`, …); names that the family's configuration lacks are ignored.
        family: `pretrain.model.family` of the params, which opens your own encoder.
        reads_mean: whether a fresh classifier on the first token gets the layer of `mean_layer`.

    Raises:
        ArtifactError: the folder holds no model, its family has no such head, it requires custom code, or it is causal
            and would classify at a token that sees no other.
    """
    if not (encoder / "config.json").is_file():
        raise ArtifactError(f"{encoder} holds no model: no {encoder / 'config.json'}", do="run `dvc repro pretrain`")
    checkpoint = Checkpoint(str(encoder), family=family)
    config = checkpoint.config()
    for name, value in changes.items():
        if hasattr(config, name):
            setattr(config, name, value)
    has_mean_layer = reads_mean and mean_layer.add_to(config)
    model, missing = opened(checkpoint, config, kind, seed)
    added = mean_layer.names(model) if has_mean_layer and isinstance(model, Model) else frozenset()
    lost = [name for name in model.of_encoder(missing) if name not in added]
    check_whole(encoder, lost, do="train or save it again")
    if has_mean_layer and isinstance(model, Model):
        mean_layer.write_to(model)
    if kind == "text-classification" and _classifies_at_a_blind_token(model):
        raise ArtifactError(
            f"{encoder} is a causal {model.config.model_type}: its head reads the first token, which sees no other",
            do="pre-train with `objective: mlm` or the family modernbert, or choose another kind of task",
        )
    return model.eval()


def _classifies_at_a_blind_token(model: TaskModel) -> bool:
    if isinstance(model, Model):
        return model.encoder.architecture.is_causal and model.head.shape.pooling == "first"
    return bool(getattr(model.config, "is_decoder", False))


def output_layer(model: TaskModel) -> nn.Linear:
    """Return the last layer of the head, which computes the logits."""
    in_encoder = {id(inner) for inner in model.base_model.modules()}
    linear = [inner for inner in model.modules() if isinstance(inner, nn.Linear) and id(inner) not in in_encoder]
    return linear[-1]


def features(model: TaskModel, batch: EncodedBatch) -> Tensor:
    """Return what the output layer of the head reads: `feature_BF`, or for each token `feature_BLF`."""
    read: list[Tensor] = []
    with output_layer(model).register_forward_pre_hook(lambda _, given: read.append(given[0])):
        model(**batch.inputs)
    (feature,) = read
    return feature


def tells_pairs_apart(model: TaskModel) -> bool:
    """Return whether the model has token types for the two texts of a pair, in addition to the separator."""
    return int(getattr(model.config, "type_vocab_size", 0) or 0) > 1


def check_fit(model: TaskModel, encoder: Path, *, vocab_size: int, max_length: int, pad_id: int) -> None:
    """Check that tokenizer, model and `max_length` fit together.

    Raises:
        ArtifactError: the folder's tokenizer was made for another model.
        ParamsError: rows of `max_length` tokens are longer than the model can read.
    """
    if vocab_size > model.config.vocab_size:
        raise ArtifactError(
            f"{encoder}: the tokenizer has {vocab_size:,} tokens, the embedding only {model.config.vocab_size:,} rows",
            do="save the tokenizer that the model was trained with, or run `dvc repro pretrain`",
        )
    if model.config.pad_token_id not in (None, pad_id):
        raise ArtifactError(
            f"{encoder}: the tokenizer pads with token {pad_id}, the model with {model.config.pad_token_id}",
            do="save the tokenizer that the model was trained with, or run `dvc repro pretrain`",
        )
    if vocab_size < _LEAST_OF_VOCABULARY * model.config.vocab_size:
        _LOG.warning(
            "%s: the tokenizer has %d tokens, the model's embedding %d rows; check that they belong together",
            *(encoder, vocab_size, model.config.vocab_size),
        )
    longest = longest_row_of(model.config)
    if max_length > longest:
        raise ParamsError(
            f"`max_length: {max_length}` is longer than the {longest} tokens that the encoder can read",
            do="lower `max_length`, or pre-train with larger `max_position_embeddings`",
        )


def save(model: TaskModel, encoder: Path, max_length: int, out: Path, *, with_types: bool = False) -> None:
    """Write the model and the encoder's tokenizer into `out`, as stock Auto classes load them.

    The tokenizer keeps `max_length`, so that texts are cut in use as in training and test. `with_types` makes it return
    token types, for a model that was trained with them.
    """
    model.save(out)
    tokenizer = open_published(str(encoder))
    tokenizer.model_max_length = max_length
    if with_types:
        tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
        tokenizer.init_kwargs["model_input_names"] = tokenizer.model_input_names
    write(tokenizer, out)
