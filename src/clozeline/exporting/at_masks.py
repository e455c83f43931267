"""Masked language models as they are exported: what they say of masks, and of whole texts.

Shapes: B texts, L tokens, Q positions of a text that the last layer is computed at, H hidden, M masks in all texts
together, V vocabulary.
"""

from typing import Any

import numpy as np
import torch
from onnx import ModelProto, numpy_helper
from torch import Tensor, nn
from transformers import PreTrainedModel

from clozeline.exporting.trained import TrainedModel
from clozeline.inference.session import MASKS_ONLY
from clozeline.tasks.pooling import mean_of_tokens


class AnswersAtMasks(nn.Module):
    """A masked language model that says only what is asked of it.

    `logits` [M, V] of the masked positions alone, row by row: the vocabulary head is up to half of the work of a
    small model, and nobody reads what it says of words that are there. `sentence_embedding` [B, H]: the mean of the
    last hidden states over the real tokens, of length 1.

    With `masks_only` [1], where it is true, the last layer too is computed at the masks alone, and there is no
    embedding [0, H]: a graph computes all of its outputs, whichever are asked for.
    """

    def __init__(self, model: PreTrainedModel, mask_id: int) -> None:
        super().__init__()
        self.masked_lm = model
        self.config = model.config
        self._mask_id = mask_id

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        masks_only: Tensor | None = None,
    ) -> dict[str, Tensor]:
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        is_mask_BL = input_ids == self._mask_id
        if masks_only is None:
            return self._answers(inputs, is_mask_BL, attention_mask)
        asked = ChosenPositions.where(is_mask_BL | ~masks_only)
        with last_layer_at(self.masked_lm, asked):
            answers = self._answers(inputs, asked.of(is_mask_BL), asked.of(attention_mask))
        is_embedded_B = (~masks_only).expand(input_ids.shape[0])
        return answers | {"sentence_embedding": answers["sentence_embedding"][is_embedded_B]}

    def _answers(self, inputs: dict[str, Tensor], is_mask_BQ: Tensor, attention_mask_BQ: Tensor) -> dict[str, Tensor]:
        embedding: list[Tensor] = []

        def keep_masks(module: nn.Module, arguments: tuple[Any, ...], output: Any) -> Any:
            hidden_BQH = output.last_hidden_state
            embedding.append(mean_of_tokens(hidden_BQH, attention_mask_BQ))
            output.last_hidden_state = hidden_BQH[is_mask_BQ].unsqueeze(0)
            return output

        # Between encoder and head, whatever the family calls them.
        hook = self.masked_lm.base_model.register_forward_hook(keep_masks)
        try:
            logits_1MV = self.masked_lm(**inputs).logits
        finally:
            hook.remove()
        return {"logits": logits_1MV.squeeze(0), "sentence_embedding": embedding[0]}


def answering_at_masks(trained: TrainedModel, stock: Any) -> tuple[nn.Module, Any]:
    """What is exported of a masked language model, and the class of its export configuration: that of the family, with
    the inputs and outputs of `AnswersAtMasks` and a mask in the traced example.
    """
    mask_id = trained.tokenizer.mask_token_id
    switch: dict[str, dict[int, str]] = {MASKS_ONLY: {}} if can_choose(trained.model) else {}

    def inputs(config: Any) -> dict[str, dict[int, str]]:
        return {**stock.inputs.fget(config), **switch}

    def outputs(config: Any) -> dict[str, dict[int, str]]:
        return {"logits": {0: "masks"}, "sentence_embedding": {0: "batch"}}

    def generate_dummy_inputs(config: Any, framework: str = "pt", **shapes: int) -> dict[str, Tensor]:
        plain = stock(trained.model.config, task="feature-extraction")
        example: dict[str, Tensor] = plain.generate_dummy_inputs(framework, **shapes)
        example["input_ids"][:, 1] = mask_id
        return example | {name: torch.ones(1, dtype=torch.bool) for name in switch}

    methods = {"inputs": property(inputs), "outputs": property(outputs), "generate_dummy_inputs": generate_dummy_inputs}
    return AnswersAtMasks(trained.model, mask_id), type("AtMasksConfig", (stock,), methods)


def add_default(model: ModelProto) -> None:
    """Let `masks_only`, if `model` takes it, be left out by a caller: it is false then."""
    if MASKS_ONLY in {value.name for value in model.graph.input}:
        model.graph.initializer.append(numpy_helper.from_array(np.zeros(1, dtype=np.bool_), MASKS_ONLY))
