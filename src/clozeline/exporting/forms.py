"""What the graph of each kind of model computes, its outputs as the manifest describes them, and the positions at which
its last layer is computed.

The likeliest tokens at each predicted position are computed in the graph: a few numbers instead of a vocabulary.

Shapes: B texts, L tokens, Q positions of a text that the last layer is computed at, H hidden, M masks in all texts
together, P predicted positions (masks, or ends of texts) in all texts together, V vocabulary, K likeliest tokens, C
classes or tags.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from onnx import ModelProto, TensorProto, helper, numpy_helper
from torch import Tensor, nn

from clozeline.encoder.architecture import ChosenPositions, Positions
from clozeline.encoder.layers import POOLINGS, mean_of_tokens, pooled
from clozeline.encoder.model import EncoderModel
from clozeline.exporting.trained import TrainedModel
from clozeline.inference.language import HIDDEN, TOP_IDS, TOP_SCORES
from clozeline.inference.package import resolved
from clozeline.records.package import LastLayer, TensorSpec

# Largest K, and the limit of `top_k` in a request.
MOST = 100

Outputs = Mapping[str, Tensor]


def num_likeliest(vocab_size: int) -> int:
    """Return K."""
    return min(MOST, vocab_size)


def add_likeliest(model: ModelProto, vocab_size: int, axis: str) -> None:
    """Add two outputs to `model`, computed from its `logits` [P, V]: `top_ids` and `top_scores` [P, K].

    They hold the likeliest tokens at each position, best first (the lower id on a tie), and their softmax probabilities
    over the whole vocabulary. ONNX Runtime computes them whatever is requested (onnxruntime #16013).
    """
    most = num_likeliest(vocab_size)
    graph = model.graph
    graph.initializer.append(numpy_helper.from_array(np.array([most], dtype=np.int64), "top/most"))
    graph.node.extend(
        [
            helper.make_node("TopK", ["logits", "top/most"], ["top/logits", TOP_IDS], name=TOP_IDS, axis=-1),
            helper.make_node("Softmax", ["logits"], ["top/probabilities"], name="top/probabilities", axis=-1),
            helper.make_node("GatherElements", ["top/probabilities", TOP_IDS], [TOP_SCORES], name=TOP_SCORES, axis=1),
        ]
    )
    graph.output.extend(
        helper.make_tensor_value_info(name, kind, [axis, most])
        for name, kind in ((TOP_IDS, TensorProto.INT64), (TOP_SCORES, TensorProto.FLOAT))
    )


@dataclass(frozen=True)
class GraphTexts:
    """A batch as the graph reads it."""

    input_ids: Tensor  # [B, L], as are `attention_mask` and `token_type_ids`
    attention_mask: Tensor
    token_type_ids: Tensor | None
    masks_only: Tensor | None  # [1]; None if the last layer is always computed at every position

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor | None]:
        return self.input_ids, self.attention_mask, self.token_type_ids


@dataclass(frozen=True)
class GraphForm:
    """Graph of one kind of model."""

    compute: Callable[[TrainedModel, GraphTexts], Outputs]
    # Function that describes what `compute` returns, in the order of the graph.
    outputs: Callable[[TrainedModel], Sequence[TensorSpec]]


def form_of(trained: TrainedModel) -> GraphForm:
    form: GraphForm = resolved(trained.kind.form)
    return form


def outputs_of(trained: TrainedModel) -> tuple[TensorSpec, ...]:
    """Return the outputs of the fp32 and the INT8 graph, in order."""
    computed = tuple(form_of(trained).outputs(trained))
    return computed + _likeliest(computed[0]) if trained.kind.is_language_model else computed


class Exported(nn.Module):
    """A trained model as a module that returns the given outputs in order."""

    def __init__(self, trained: TrainedModel, outputs: Sequence[str]) -> None:
        super().__init__()
        self.model = trained.model
        self._trained, self._outputs = trained, tuple(outputs)
        self._compute = form_of(trained).compute

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        masks_only: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        texts = GraphTexts(input_ids, attention_mask, token_type_ids, masks_only)
        outputs = self._compute(self._trained, texts)
        return tuple(outputs[name] for name in self._outputs)


def last_layer_of(trained: TrainedModel) -> LastLayer:
    """Return where the graph computes its last layer: on our own layers, only at positions that are read."""
    if not isinstance(trained.model, EncoderModel):
        return "every position"
    if trained.kind.fills_masks:
        return "masked positions"
    return "first position" if trained.model.head.shape.pooling == "first" else "every position"


def _at_masks(trained: TrainedModel, texts: GraphTexts) -> Outputs:
    """Return `logits` [M, V] at the masked positions only, row by row, `sentence_embedding` [B, H], and the last hidden
    states [B, Q, H].

    The vocabulary head is up to half of the work of a small model, and its logits at other positions are not read.
    If `masks_only` is true, the last layer is computed at the masks only too and the embedding is empty, [0, H]: a
    graph computes all of its outputs, whichever are requested.
    """
    is_mask_BL = texts.input_ids == trained.tokenizer.mask_token_id
    if texts.masks_only is None:
        hidden_BLH = _hidden(trained, texts)
        embedding_BH = mean_of_tokens(hidden_BLH, texts.attention_mask)
        logits_MV = trained.model.says(hidden_BLH[is_mask_BL])
        return {"logits": logits_MV, "sentence_embedding": embedding_BH, HIDDEN: hidden_BLH}
    asked = ChosenPositions.where(is_mask_BL | ~texts.masks_only)
    # One position would work too, but the tracer has to know that this axis is not broadcast.
    torch._check(asked.position_BQ.shape[1] > 1)
    hidden_BQH = _hidden(trained, texts, asked)
    embedding_BH = mean_of_tokens(hidden_BQH, asked.of(texts.attention_mask))
    is_embedded_B = (~texts.masks_only).expand(texts.input_ids.shape[0])
    return {
        "logits": trained.model.says(hidden_BQH[asked.of(is_mask_BL)]),
        "sentence_embedding": embedding_BH[is_embedded_B],
        HIDDEN: hidden_BQH,
    }


def _at_end(trained: TrainedModel, texts: GraphTexts) -> Outputs:
    """Return `logits` [B, V] of the token after each text, `sentence_embedding` [B, H], and the last hidden states."""
    hidden_BLH = _hidden(trained, texts)
    is_last_BL = texts.attention_mask.cumsum(1) == texts.attention_mask.sum(1, keepdim=True)
    last_B = is_last_BL.int().argmax(1)
    last_BH = hidden_BLH.gather(1, last_B[:, None, None].expand(-1, 1, hidden_BLH.shape[2])).squeeze(1)
    embedding_BH = mean_of_tokens(hidden_BLH, texts.attention_mask)
    return {"logits": trained.model.says(last_BH), "sentence_embedding": embedding_BH, HIDDEN: hidden_BLH}


def _embedded(trained: TrainedModel, texts: GraphTexts) -> Outputs:
    """Return `sentence_embedding` [B, H] and the last hidden states [B, L, H]."""
    hidden_BLH = _hidden(trained, texts)
    return {"sentence_embedding": pooled(trained.pooling, hidden_BLH, texts.attention_mask), HIDDEN: hidden_BLH}


def labelled(trained: TrainedModel, texts: GraphTexts) -> Outputs:
    """Return `logits`: [B, C] of a classifier, [B, L, C] of a tagger."""
    return {"logits": trained.model(*texts.inputs).logits}


def _pointed(trained: TrainedModel, texts: GraphTexts) -> Outputs:
    """Return `start_logits` and `end_logits` [B, L]."""
    start_BL, end_BL = trained.model(*texts.inputs).logits.unbind(-1)
    return {"start_logits": start_BL, "end_logits": end_BL}


def _hidden(trained: TrainedModel, texts: GraphTexts, positions: Positions | None = None) -> Tensor:
    """Return the last hidden states [B, L, H], or [B, Q, H] at `positions`, which only our own layers support."""
    of_positions = () if positions is None else (positions,)
    hidden: Tensor = trained.model.base_model(*texts.inputs, *of_positions).last_hidden_state
    return hidden


def _tensor(name: str, shape: tuple[str | int, ...], meaning: str) -> TensorSpec:
    return TensorSpec(name=name, dtype="float32", shape=shape, meaning=meaning)


def _embeddings(trained: TrainedModel, axis: str = "length") -> Sequence[TensorSpec]:
    """Describe the vectors; `axis`: name of the positions that the last layer is computed at."""
    hidden_size, words = trained.model.config.hidden_size, POOLINGS[trained.pooling].words
    return (
        _tensor("sentence_embedding", ("batch", hidden_size), f"{words}, normalized to length 1"),
        _tensor(HIDDEN, ("batch", axis, hidden_size), "last hidden state of each token"),
    )


def _masks(trained: TrainedModel) -> Sequence[TensorSpec]:
    meaning = "one for each token of the vocabulary at each mask, row by row of the batch, before softmax"
    at = "positions" if last_layer_of(trained) == "masked positions" else "length"
    return _tensor("logits", ("masks", trained.model.config.vocab_size), meaning), *_embeddings(trained, at)


def _ends_of_texts(trained: TrainedModel) -> Sequence[TensorSpec]:
    meaning = "one for each token of the vocabulary after the last token of each text, before softmax"
    return _tensor("logits", ("batch", trained.model.config.vocab_size), meaning), *_embeddings(trained)


def _likeliest(logits: TensorSpec) -> tuple[TensorSpec, ...]:
    rows, vocab_size = logits.shape
    assert isinstance(vocab_size, int)
    top = (rows, num_likeliest(vocab_size))
    return (
        TensorSpec(name=TOP_IDS, dtype="int64", shape=top, meaning="the likeliest tokens of each row, best first"),
        _tensor(TOP_SCORES, top, "probabilities of top_ids over the whole vocabulary"),
    )


def _labels(trained: TrainedModel) -> Sequence[TensorSpec]:
    before = "" if trained.label_scores == "none" else f", before {trained.label_scores}"
    return (_tensor("logits", ("batch", len(trained.labels)), f"one for each label{before}"),)


def _tags(trained: TrainedModel) -> Sequence[TensorSpec]:
    meaning = "one for each tag at each token, before softmax; the first token of a word decides its tag"
    return (_tensor("logits", ("batch", "length", len(trained.labels)), meaning),)


def _ends(trained: TrainedModel) -> Sequence[TensorSpec]:
    meaning = "one for each token as the {} token of the answer, before softmax; the row's first token means no answer"
    return tuple(
        _tensor(f"{name}_logits", ("batch", "length"), meaning.format(which))
        for name, which in (("start", "first"), ("end", "last"))
    )


MASKS = GraphForm(_at_masks, _masks)
NEXT_TOKENS = GraphForm(_at_end, _ends_of_texts)
LABELS = GraphForm(labelled, _labels)
TAGS = GraphForm(labelled, _tags)
ENDS = GraphForm(_pointed, _ends)
EMBEDDINGS = GraphForm(_embedded, _embeddings)
