"""A pre-trained encoder under a head of its own for a task: built, checked, saved; any of the Auto classes."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel

from clozeline.encoder.messages import errors_only
from clozeline.encoder.saving import save_weights
from clozeline.encoder.stock_classes import attention_of, longest_row_of
from clozeline.errors import ArtifactError, ParamsError
from clozeline.tokenizer.folder import write
from clozeline.tokenizer.foreign import inspect_model
from clozeline.tokenizer.published.opening import open_published

_LOG = logging.getLogger(__name__)
TaskModel = PreTrainedModel
"""What a kind of task trains, for rooms that know nothing of transformers."""
_LEAST_OF_VOCABULARY = 0.95
"""Tables of embeddings are rounded up; by more than this, the tokenizer is hardly the model's."""


def build(encoder: Path, auto_class: Any, seed: int, changes: Mapping[str, object]) -> PreTrainedModel:
    """The encoder's weights under a fresh head, which is a function of `seed`; the global random state stays.

    Args:
        encoder: folder of a trained encoder.
        auto_class: the Auto class of the head, such as `AutoModelForSequenceClassification`.
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
    inspect_model(str(encoder))
    config = AutoConfig.from_pretrained(encoder, local_files_only=True, trust_remote_code=False)
    if type(config) not in auto_class._model_mapping:
        raise ArtifactError(
            f"transformers has no head of this kind for the encoder in {encoder}",
            given=f"model_type {config.model_type}",
            expected=f"a family that {auto_class.__name__} knows",
            do="pre-train another family (`pretrain.model.family`), or choose another kind of task",
        )
    for name, value in changes.items():
        if hasattr(config, name):
            setattr(config, name, value)
    model_class = auto_class._model_mapping[type(config)]
    with torch.random.fork_rng(devices=[]), errors_only():
        torch.manual_seed(seed)
        model: PreTrainedModel = model_class.from_pretrained(
            encoder,
            config=config,
            local_files_only=True,
            use_safetensors=True,
            attn_implementation=_attention_of(model_class, config),
        )
    return model


def _attention_of(model_class: type[PreTrainedModel], config: PretrainedConfig) -> str:
    """Where attention has dropout, PyTorch's fused one is not fused on a CPU, and draws slowly: BERT and its kin, who
    have a `nn.Dropout` there, take 4-9 % less time for a training step by their own (of MiniLM, rows of 35 and of 128
    tokens; as much of 384), and 4 % less to 8 % more for an answer.
    """
    drops = getattr(config, "attention_probs_dropout_prob", 0) > 0
    return "eager" if drops and not torch.cuda.is_available() else attention_of(model_class)


def tells_pairs_apart(model: PreTrainedModel) -> bool:
    """Whether it has an embedding for the second text of a pair, beside the separator between them."""
    return int(getattr(model.config, "type_vocab_size", 0) or 0) > 1


def check_fit(model: PreTrainedModel, encoder: Path, *, vocab_size: int, max_length: int, pad_id: int) -> None:
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


def save(model: PreTrainedModel, encoder: Path, max_length: int, out: Path, *, with_types: bool = False) -> None:
    """Fill `out` with what stock Auto classes load: the model, and the encoder's tokenizer.

    The tokenizer remembers `max_length`: texts are cut in use where they were cut in training and in the test. And
    `with_types` that it is to tell the texts of a pair apart, if the model has learned from that.
    """
    save_weights(model, out)
    tokenizer = open_published(str(encoder))
    tokenizer.model_max_length = max_length
    if with_types:
        tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
        tokenizer.init_kwargs["model_input_names"] = tokenizer.model_input_names
    write(tokenizer, out)
