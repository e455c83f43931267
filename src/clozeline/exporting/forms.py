"""What is computed of a trained model where it is served, and where in its last layer.

Shapes: B texts, L tokens, Q positions of a text that the last layer is computed at, H hidden, M masks in all texts
together, V vocabulary, C classes or tags.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from clozeline.artifacts.manifest import LastLayer
from clozeline.encoder.model import Model
from clozeline.encoder.positions import ChosenPositions, Positions
from clozeline.exporting.trained import TrainedModel
from clozeline.inference.model_kinds import resolved
from clozeline.tasks.pooling import mean_of_tokens

Answers = Mapping[str, Tensor]


@dataclass(frozen=True)
class Texts:
    """A batch, as a graph is given it."""

    input_ids: Tensor
    """[B, L], as what follows."""
    attention_mask: Tensor
    token_type_ids: Tensor | None
    masks_only: Tensor | None
    """[1]; None: the last layer is computed at every position."""

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor | None]:
        return self.input_ids, self.attention_mask, self.token_type_ids


class Exported(nn.Module):
    """A trained model, asked for some outputs in their order."""

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
        answers: Answers = resolved(self._trained.answers.form)(self._trained, texts)
        return tuple(answers[name] for name in self._outputs)


def last_layer_of(trained: TrainedModel) -> LastLayer:
    """Where the last layer of the graph is computed: at no more positions than are read, if it runs on our layers."""
    if not isinstance(trained.model, Model):
        return "every position"
    if trained.answers.fills_masks:
        return "masked positions"
    return "first position" if trained.model.head.shape.pooling == "first" else "every position"


def at_masks(trained: TrainedModel, texts: Texts) -> Answers:
    """`logits` [M, V] of the masked positions alone, row by row: the vocabulary head is up to half of the work of a
    small model, and nobody reads what it says of words that are there. `sentence_embedding` [B, H].

    With `masks_only`, where it is true, the last layer too is computed at the masks alone, and there is no embedding
    [0, H]: a graph computes all of its outputs, whichever are asked for.
    """
    is_mask_BL = texts.input_ids == trained.tokenizer.mask_token_id
    if texts.masks_only is None:
        hidden_BLH = _hidden(trained, texts)
        embedding_BH = mean_of_tokens(hidden_BLH, texts.attention_mask)
        return {"logits": trained.model.says(hidden_BLH[is_mask_BL]), "sentence_embedding": embedding_BH}
    asked = ChosenPositions.where(is_mask_BL | ~texts.masks_only)
    # One position is nothing special, but the tracer wants to know that no axis is one that is spread over others.
    torch._check(asked.position_BQ.shape[1] > 1)
    hidden_BQH = _hidden(trained, texts, asked)
    embedding_BH = mean_of_tokens(hidden_BQH, asked.of(texts.attention_mask))
    is_embedded_B = (~texts.masks_only).expand(texts.input_ids.shape[0])
    return {
        "logits": trained.model.says(hidden_BQH[asked.of(is_mask_BL)]),
        "sentence_embedding": embedding_BH[is_embedded_B],
    }


def embedded(trained: TrainedModel, texts: Texts) -> Answers:
    """`sentence_embedding` [B, H] alone."""
    return {"sentence_embedding": mean_of_tokens(_hidden(trained, texts), texts.attention_mask)}


def labelled(trained: TrainedModel, texts: Texts) -> Answers:
    """`logits` [B, C] of a classifier, [B, L, C] of a tagger."""
    return {"logits": trained.model(*texts.inputs).logits}


def pointed(trained: TrainedModel, texts: Texts) -> Answers:
    """`start_logits` and `end_logits` [B, L]."""
    start_BL, end_BL = trained.model(*texts.inputs).logits.unbind(-1)
    return {"start_logits": start_BL, "end_logits": end_BL}


def _hidden(trained: TrainedModel, texts: Texts, positions: Positions | None = None) -> Tensor:
    """Last hidden states [B, L, H], or those of `positions`, which our own layers alone know."""
    of_positions = () if positions is None else (positions,)
    hidden: Tensor = trained.model.base_model(*texts.inputs, *of_positions).last_hidden_state
    return hidden
