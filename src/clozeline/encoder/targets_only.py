"""The last layer at the targets alone: nobody asks what it would say elsewhere.

Keys and values are still those of all positions; queries, the output of attention and the MLP are the targets'. The
same numbers to rounding, for a fifth of a layer's cost where a fifth of the tokens are targets.

Shapes: B rows, L longest row, T targets, M most targets of a row, A heads, D dimensions of a head, H hidden.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from clozeline.encoder.objectives import TargetBatch

_MOST_TARGETS = 0.5
"""Share of the positions above which going to them one by one is no gain."""


def encode_targets(model: Any, batch: TargetBatch) -> Tensor | None:
    """`hidden_TH` after the whole encoder; None where it must be called in its usual way.

    So it is for families without a row in the table, for many targets, on a GPU (the number of a row's targets would
    have to be waited for), in a graph that is compiled, and where hooks want to see the layer's whole output.
    """
    encode = _ENCODERS.get(type(model).__name__)
    num_targets = len(batch.slot_T)
    if encode is None or not 0 < num_targets < _MOST_TARGETS * batch.num_slots:
        return None
    if batch.slot_T.device.type != "cpu" or torch.compiler.is_compiling() or _is_hooked(model.base_model):
        return None
    return encode(model.base_model, batch)


def _is_hooked(encoder: nn.Module) -> bool:
    return any(module._forward_hooks or module._forward_pre_hooks for module in encoder.modules())


@dataclass(frozen=True)
class _Queries:
    """Where targets stand, as rows of queries that attention can be given."""

    row_T: Tensor
    place_T: Tensor
    """Counted among the targets of the row."""
    position_T: Tensor
    shape_BM: tuple[int, int]

    @classmethod
    def of(cls, batch: TargetBatch) -> Self:
        num_rows, length = batch.input_ids_BL.shape
        row_T, position_T = batch.slot_T // length, batch.slot_T % length
        counts_B = torch.bincount(row_T, minlength=num_rows)
        first_B = counts_B.cumsum(0) - counts_B
        place_T = torch.arange(len(row_T)) - first_B[row_T]
        return cls(row_T, place_T, position_T, (num_rows, int(counts_B.max())))

    def spread(self, values_TX: Tensor) -> Tensor:
        """`values_BMX`: zero where a row has fewer than M targets."""
        values_BMX = values_TX.new_zeros(*self.shape_BM, *values_TX.shape[1:])
        spread_BMX: Tensor = values_BMX.index_put((self.row_T, self.place_T), values_TX)
        return spread_BMX

    def attend(
        self, query_THd: Tensor, key_BLH: Tensor, value_BLH: Tensor, num_heads: int, mask: Tensor | None, dropout: float
    ) -> Tensor:
        """`context_TH`: each target looks at its row."""
        query_BAMD = _heads(self.spread(query_THd), num_heads)
        key_BALD, value_BALD = _heads(key_BLH, num_heads), _heads(value_BLH, num_heads)
        context_BAMD = functional.scaled_dot_product_attention(
            query_BAMD, key_BALD, value_BALD, attn_mask=mask, dropout_p=dropout
        )
        context_TH: Tensor = context_BAMD.transpose(1, 2).flatten(2)[self.row_T, self.place_T]
        return context_TH


def _heads(values_BXH: Tensor, num_heads: int) -> Tensor:
    values_BAXD: Tensor = values_BXH.unflatten(2, (num_heads, -1)).transpose(1, 2)
    return values_BAXD


def _at_targets(values_BLH: Tensor, batch: TargetBatch) -> Tensor:
    return values_BLH.flatten(0, 1)[batch.slot_T]


def _padding_mask(batch: TargetBatch) -> Tensor | None:
    """True where attention may look, `[B, 1, 1, L]`."""
    mask_BL = batch.attention_mask_BL
    return None if mask_BL is None else mask_BL.bool()[:, None, None]


def _modernbert(encoder: Any, batch: TargetBatch) -> Tensor:
    position_1L = torch.arange(batch.input_ids_BL.shape[1])[None]
    masks = {"global": _padding_mask(batch), "local": _window_mask(encoder, batch)}
    hidden_BLH = encoder.embeddings(input_ids=batch.input_ids_BL)
    *body, last = encoder.layers
    for layer in body:
        hidden_BLH = layer(
            hidden_BLH,
            attention_mask=masks["global"],
            sliding_window_mask=masks["local"],
            position_ids=position_1L,
        )[0]
    hidden_TH = _last_of_modernbert(last, hidden_BLH, batch, encoder.config.local_attention // 2)
    out_TH: Tensor = encoder.final_norm(hidden_TH)
    return out_TH


def _window_mask(encoder: Any, batch: TargetBatch) -> Tensor | None:
    """True where local attention may look; None where rows are shorter than its window."""
    reach = encoder.config.local_attention // 2
    length = batch.input_ids_BL.shape[1]
    padding = _padding_mask(batch)
    if length <= reach + 1:
        return padding
    position_L = torch.arange(length)
    window: Tensor = ((position_L[:, None] - position_L).abs() <= reach)[None, None]
    return window if padding is None else window & padding


def _last_of_modernbert(layer: Any, hidden_BLH: Tensor, batch: TargetBatch, reach: int) -> Tensor:
    attention, queries = layer.attn, _Queries.of(batch)
    normed_BLH = layer.attn_norm(hidden_BLH)
    size = attention.all_head_size
    weight, bias = attention.Wqkv.weight, attention.Wqkv.bias
    of_query, of_rest = slice(None, size), slice(size, None)
    query_TH = functional.linear(
        _at_targets(normed_BLH, batch), weight[of_query], None if bias is None else bias[of_query]
    )
    key_BLH, value_BLH = functional.linear(normed_BLH, weight[of_rest], None if bias is None else bias[of_rest]).chunk(
        2, dim=2
    )
    length = batch.input_ids_BL.shape[1]
    cos_1LD, sin_1LD = attention.rotary_emb(hidden_BLH, position_ids=torch.arange(length)[None])
    cos_LD, sin_LD = cos_1LD[0], sin_1LD[0]
    key_BLH = _rotated(key_BLH, cos_LD, sin_LD, attention.num_heads)
    query_TH = _rotated(query_TH, cos_LD[queries.position_T], sin_LD[queries.position_T], attention.num_heads)
    mask = _padding_mask(batch)
    if attention.local_attention != (-1, -1) and length > reach + 1:
        position_BM = queries.spread(queries.position_T)
        window = ((position_BM[..., None] - torch.arange(length)).abs() <= reach)[:, None]
        mask = window if mask is None else window & mask
    dropout = attention.attention_dropout if layer.training else 0.0
    context_TH = queries.attend(query_TH, key_BLH, value_BLH, attention.num_heads, mask, dropout)
    hidden_TH = _at_targets(hidden_BLH, batch) + attention.out_drop(attention.Wo(context_TH))
    out_TH: Tensor = hidden_TH + layer.mlp(layer.mlp_norm(hidden_TH))
    return out_TH


def _rotated(values_XH: Tensor, cos_XD: Tensor, sin_XD: Tensor, num_heads: int) -> Tensor:
    """Rotary positions (Su et al. 2021, equation 34), heads still side by side; X is any axes, positions the last."""
    values_XAD = values_XH.unflatten(-1, (num_heads, -1))
    first_XAE, second_XAE = values_XAD.chunk(2, dim=-1)
    turned_XAD = torch.cat((-second_XAE, first_XAE), dim=-1)
    rotated_XAD: Tensor = values_XAD * cos_XD.unsqueeze(-2) + turned_XAD * sin_XD.unsqueeze(-2)
    return rotated_XAD.flatten(-2)


def _bert(encoder: Any, batch: TargetBatch) -> Tensor:
    mask = _padding_mask(batch)
    hidden_BLH = encoder.embeddings(input_ids=batch.input_ids_BL)
    *body, last = encoder.encoder.layer
    for layer in body:
        hidden_BLH = layer(hidden_BLH, mask)[0]
    attention, queries = last.attention.self, _Queries.of(batch)
    before_TH = _at_targets(hidden_BLH, batch)
    context_TH = queries.attend(
        attention.query(before_TH),
        attention.key(hidden_BLH),
        attention.value(hidden_BLH),
        attention.num_attention_heads,
        mask,
        attention.dropout.p if last.training else 0.0,
    )
    attended_TH = last.attention.output(context_TH, before_TH)
    out_TH: Tensor = last.output(last.intermediate(attended_TH), attended_TH)
    return out_TH


_ENCODERS: Mapping[str, Callable[[Any, TargetBatch], Tensor]] = MappingProxyType(
    {
        "ModernBertForMaskedLM": _modernbert,
        "BertForMaskedLM": _bert,
        "RobertaForMaskedLM": _bert,
        "XLMRobertaForMaskedLM": _bert,
    }
)
"""Keyed by the class of the model. Causal models are not in it: there nearly every token is a target."""
