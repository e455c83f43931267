"""Computation of each kind of exported model, and the positions at which its last layer is computed.

Shapes: B texts, L tokens, Q positions of a text that the last layer is computed at, H hidden, M masks in all texts
together, V vocabulary, C classes or tags.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from clozeline.artifacts.export.manifest import LastLayer
from clozeline.encoder.model import Model
from clozeline.encoder.positions import ChosenPositions, Positions
from clozeline.exporting.trained import TrainedModel
from clozeline.inference.model_kinds import resolved
from clozeline.tasks.pooling import mean_of_tokens

Outputs = Mapping[str, Tensor]


@dataclass(frozen=True)
class Texts:
    """A batch as the graph reads it."""

    input_ids: Tensor
    """[B, L], as are `attention_mask` and `token_type_ids`."""
    attention_mask: Tensor
    token_type_ids: Tensor | None
    masks_only: Tensor | None
    """[1]; None if the last layer is always computed at every position."""

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor | None]:
        return self.input_ids, self.attention_mask, self.token_type_ids


class Exported(nn.Module):
    """A trained model as a module that returns the given outputs in order."""

    def __init__(self, trained: TrainedModel, outputs: Sequence[str]) -> None:
        super().__init__()
        self.model = trained.model
        self._trained, self._outputs = trained, tuple(outputs)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        masks_only: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        texts = Texts(input_ids, attention_mask, token_type_ids, masks_only)
        outputs: Outputs = resolved(self._trained.kind.form)(self._trained, texts)
        return tuple(outputs[name] for name in self._outputs)


def last_layer_of(trained: TrainedModel) -> LastLayer:
    """Return where the graph computes its last layer: on our own layers, only at positions that are read."""
    if not isinstance(trained.model, Model):
        return "every position"
    if trained.kind.fills_masks:
        return "masked positions"
    return "first position" if trained.model.head.shape.pooling == "first" else "every position"


def at_masks(trained: TrainedModel, texts: Texts) -> Outputs:
    """Return `logits` [M, V] at the masked positions only, row by row, and `sentence_embedding` [B, H].

    The vocabulary head is up to half of the work of a small model, and its logits at other positions are not read.
    If `masks_only` is true, the last layer is computed at the masks only too and the embedding is empty, [0, H]: a
    graph computes all of its outputs, whichever are requested.
    """
    is_mask_BL = texts.input_ids == trained.tokenizer.mask_token_id
    if texts.masks_only is None:
        hidden_BLH = _hidden(trained, texts)
        embedding_BH = mean_of_tokens(hidden_BLH, texts.attention_mask)
        return {"logits": trained.model.says(hidden_BLH[is_mask_BL]), "sentence_embedding": embedding_BH}
    asked = ChosenPositions.where(is_mask_BL | ~texts.masks_only)
    # One position would work too, but the tracer has to know that this axis is not broadcast.
    torch._check(asked.position_BQ.shape[1] > 1)
    hidden_BQH = _hidden(trained, texts, asked)
    embedding_BH = mean_of_tokens(hidden_BQH, asked.of(texts.attention_mask))
    is_embedded_B = (~texts.masks_only).expand(texts.input_ids.shape[0])
    return {
        "logits": trained.model.says(hidden_BQH[asked.of(is_mask_BL)]),
        "sentence_embedding": embedding_BH[is_embedded_B],
    }


def at_end(trained: TrainedModel, texts: Texts) -> Outputs:
    """Return `logits` [B, V] of the token after each text, and `sentence_embedding` [B, H]."""
    hidden_BLH = _hidden(trained, texts)
    is_last_BL = texts.attention_mask.cumsum(1) == texts.attention_mask.sum(1, keepdim=True)
    last_B = is_last_BL.int().argmax(1)
    last_BH = hidden_BLH.gather(1, last_B[:, None, None].expand(-1, 1, hidden_BLH.shape[2])).squeeze(1)
    embedding_BH = mean_of_tokens(hidden_BLH, texts.attention_mask)
    return {"logits": trained.model.says(last_BH), "sentence_embedding": embedding_BH}


def embedded(trained: TrainedModel, texts: Texts) -> Outputs:
    """Return `sentence_embedding` [B, H]."""
    return {"sentence_embedding": mean_of_tokens(_hidden(trained, texts), texts.attention_mask)}


def labelled(trained: TrainedModel, texts: Texts) -> Outputs:
    """Return `logits`: [B, C] of a classifier, [B, L, C] of a tagger."""
    return {"logits": trained.model(*texts.inputs).logits}


def pointed(trained: TrainedModel, texts: Texts) -> Outputs:
    """Return `start_logits` and `end_logits` [B, L]."""
    start_BL, end_BL = trained.model(*texts.inputs).logits.unbind(-1)
    return {"start_logits": start_BL, "end_logits": end_BL}


def _hidden(trained: TrainedModel, texts: Texts, positions: Positions | None = None) -> Tensor:
    """Return the last hidden states [B, L, H], or [B, Q, H] at `positions`, which only our own layers support."""
    of_positions = () if positions is None else (positions,)
    hidden: Tensor = trained.model.base_model(*texts.inputs, *of_positions).last_hidden_state
    return hidden
