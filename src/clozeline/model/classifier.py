"""An encoder with a head that tells classes apart: built on a pre-trained encoder, asked, saved.

Shapes: B rows, L longest row, C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel

from clozeline.errors import ArtifactError, ParamsError
from clozeline.model.messages import errors_only
from clozeline.model.saving import save_weights
from clozeline.model.stock_classes import attention_of, longest_row_of


@dataclass(frozen=True)
class ClassBatch:
    """Rows and the class of each."""

    input_ids_BL: Tensor
    attention_mask_BL: Tensor | None
    """None where no row is padded: attention then takes a faster path."""
    class_B: Tensor

    @property
    def num_rows(self) -> int:
        return self.input_ids_BL.shape[0]

    @property
    def num_slots(self) -> int:
        """Tokens, padding among them."""
        return self.input_ids_BL.numel()

    def rows(self, first: int, last: int) -> "ClassBatch":
        """Rows `first` … `last - 1` alone."""
        mask_BL = self.attention_mask_BL
        part_BL = None if mask_BL is None else mask_BL[first:last]
        return ClassBatch(self.input_ids_BL[first:last], part_BL, self.class_B[first:last])

    def to(self, device: torch.device) -> "ClassBatch":
        mask_BL = None if self.attention_mask_BL is None else self.attention_mask_BL.to(device)
        return ClassBatch(self.input_ids_BL.to(device), mask_BL, self.class_B.to(device))


def build(encoder: Path, labels: Sequence[str], seed: int) -> PreTrainedModel:
    """The encoder's weights under a fresh head, which is a function of `seed`; the global random state stays.

    Raises:
        ArtifactError: the folder holds no model.
    """
    if not (encoder / "config.json").is_file():
        raise ArtifactError(
            f"{encoder} holds no model",
            given=f"no {encoder / 'config.json'}",
            expected="a folder that `pretrain` wrote",
            do="run `dvc repro pretrain`",
        )
    config = AutoConfig.from_pretrained(encoder, local_files_only=True)
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: place for place, label in enumerate(labels)}
    if hasattr(config, "classifier_pooling"):
        # Masked language modelling never trains [CLS]: the mean over tokens is the better summary of a text.
        config.classifier_pooling = "mean"
    model_class = AutoModelForSequenceClassification._model_mapping[type(config)]
    with torch.random.fork_rng(devices=[]), errors_only():
        torch.manual_seed(seed)
        return model_class.from_pretrained(
            encoder, config=config, local_files_only=True, attn_implementation=attention_of(model_class)
        )


def check_fit(model: PreTrainedModel, encoder: Path, *, vocab_size: int, max_length: int) -> None:
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
    longest = longest_row_of(model.config)
    if max_length > longest:
        raise ParamsError(
            "params.yaml: `max_length` of the task is longer than the encoder can read",
            given=max_length,
            expected=f"at most {longest}",
            do="lower it, or raise `pretrain.model.max_position_embeddings`",
        )


def class_logits(model: PreTrainedModel, batch: ClassBatch) -> Tensor:
    """`logits_BC`."""
    logits_BC: Tensor = model(batch.input_ids_BL, attention_mask=batch.attention_mask_BL).logits
    return logits_BC


def save(model: PreTrainedModel, encoder: Path, max_length: int, out: Path) -> None:
    """Fill `out` with what stock `AutoModelForSequenceClassification` and `AutoTokenizer` load.

    The tokenizer remembers `max_length`: texts are cut in use where they were cut in training and in the test.
    """
    save_weights(model, out)
    tokenizer = AutoTokenizer.from_pretrained(encoder, local_files_only=True)
    tokenizer.model_max_length = max_length
    tokenizer.save_pretrained(out)
