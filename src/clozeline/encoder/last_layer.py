"""The last layer at some positions alone, for a graph from which nobody reads the others.

Keys and values are still those of all positions; queries, the output of attention, the MLP and the norms are of the
positions that are asked for: the same numbers to rounding. (`targets_only` does so in training.) Of ModernBERT, queries
come out of one product with keys and values, which stays whole: parted, it would be another matrix in the file.

Not in the table, and computed everywhere: ALBERT, whose last layer is every layer; DeBERTa and MPNet, where attention
depends on how far apart two positions are; BigBird, whose attention is in blocks.

Shapes: B texts, L tokens, Q positions of each text that are asked for, H hidden, A heads, D dimensions of a head; X is
any axis.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol, Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional


class Positions(Protocol):
    """Which positions of each text are asked for, in their order."""

    def of(self, values_BLX: Tensor) -> Tensor:
        """`values_BQX`."""

    def of_every_text(self, values_1LX: Tensor) -> Tensor:
        """`values_BQX` or `values_1QX` of what is the same in all texts."""


class FirstPosition:
    """[CLS], or what stands there."""

    def of(self, values_BLX: Tensor) -> Tensor:
        return values_BLX[:, :1]

    def of_every_text(self, values_1LX: Tensor) -> Tensor:
        return values_1LX[:, :1]


@dataclass(frozen=True)
class ChosenPositions:
    """As many of each text as of the text with the most: where there are fewer, others follow them."""

    position_BQ: Tensor
    slot_BQ: Tensor
    """The same, counted through all texts."""

    @classmethod
    def where(cls, is_asked_BL: Tensor) -> Self:
        """Those that are asked for, in their order, and of each text the first: so there are never none."""
        num_texts, length = is_asked_BL.shape
        position_L = torch.arange(length, device=is_asked_BL.device)
        asked_BL = (is_asked_BL | (position_L == 0)).long()
        num_asked = asked_BL.sum(dim=1).max()
        # Different numbers for all that are asked for: no rule for equal ones decides their order.
        key_BL = asked_BL * (length - position_L)
        # A tracer takes the tensor for the number it is, and the graph computes it.
        position_BQ = key_BL.topk(cast(int, num_asked), dim=1).indices
        first_B1 = length * torch.arange(num_texts, device=is_asked_BL.device).unsqueeze(1)
        return cls(position_BQ, position_BQ + first_B1)

    def of(self, values_BLX: Tensor) -> Tensor:
        return values_BLX.flatten(0, 1)[self.slot_BQ]

    def of_every_text(self, values_1LX: Tensor) -> Tensor:
        return values_1LX[0][self.position_BQ]


def can_choose(model: Any) -> bool:
    """Whether the last layer of `model` is one of those that are written out here."""
    kind = _KINDS.get(model.config.model_type)
    return kind is not None and not getattr(model.config, "is_decoder", False) and kind.fits(model.config)


def reads_first_position(model: Any) -> bool:
    """Whether a classifier's head looks at the first position and at no other."""
    if type(model).__name__ == "ModernBertForSequenceClassification":
        return bool(model.config.classifier_pooling == "cls")
    return type(model).__name__ in _READ_FIRST


@contextmanager
def last_layer_at(model: Any, positions: Positions) -> Iterator[None]:
    """While it is entered, the encoder of `model` gives the hidden states of `positions` alone, `hidden_BQH`.

    Only where `can_choose`; in evaluation, not in training: there is no dropout.
    """
    assert can_choose(model)
    assert not model.training
    kind = _KINDS[model.config.model_type]
    layer: Any = kind.layers(model.base_model)[-1]
    layer.forward = partial(kind.forward, layer, positions)
    try:
        yield
    finally:
        del layer.forward  # the method of its class is behind it


_READ_FIRST = frozenset(
    f"{family}ForSequenceClassification" for family in ("Bert", "Roberta", "XLMRoberta", "Electra", "DistilBert")
)


@dataclass(frozen=True)
class _Heads:
    num: int
    size: int

    @property
    def width(self) -> int:
        return self.num * self.size

    def parted(self, values_BXH: Tensor) -> Tensor:
        return values_BXH.reshape(values_BXH.shape[0], -1, self.num, self.size).transpose(1, 2)

    def attend(self, query_BAQD: Tensor, key_BALD: Tensor, value_BALD: Tensor, mask: Tensor | None) -> Tensor:
        """`context_BQH`."""
        context_BAQD = functional.scaled_dot_product_attention(query_BAQD, key_BALD, value_BALD, attn_mask=mask)
        context_BQAD = context_BAQD.transpose(1, 2)
        return context_BQAD.reshape(context_BQAD.shape[0], -1, self.width)

    def rotated(self, values_BAXD: Tensor, cos_BXD: Tensor, sin_BXD: Tensor) -> Tensor:
        """Rotary positions (Su et al. 2021, equation 34)."""
        first, second = values_BAXD[..., : self.size // 2], values_BAXD[..., self.size // 2 :]
        turned_BAXD = torch.cat((-second, first), dim=-1)
        return values_BAXD * cos_BXD.unsqueeze(1) + turned_BAXD * sin_BXD.unsqueeze(1)


def _of_padding(mask: Tensor | None) -> Tensor | None:
    """A mask of padding says the same to every query: `[B, 1, 1, L]`."""
    return None if mask is None else mask[:, :, :1]


def _bert(
    layer: Any, positions: Positions, hidden_BLH: Tensor, attention_mask: Tensor | None = None, *_: Any, **__: Any
) -> tuple[Tensor]:
    attention = layer.attention.self
    heads = _Heads(attention.num_attention_heads, attention.attention_head_size)
    asked_BQH = positions.of(hidden_BLH)
    context_BQH = heads.attend(
        heads.parted(attention.query(asked_BQH)),
        heads.parted(attention.key(hidden_BLH)),
        heads.parted(attention.value(hidden_BLH)),
        _of_padding(attention_mask),
    )
    attended_BQH = layer.attention.output(context_BQH, asked_BQH)
    return (layer.output(layer.intermediate(attended_BQH), attended_BQH),)


def _distilbert(
    layer: Any, positions: Positions, hidden_BLH: Tensor, attention_mask: Tensor | None = None, *_: Any, **__: Any
) -> tuple[Tensor]:
    attention = layer.attention
    heads = _Heads(attention.n_heads, attention.dim // attention.n_heads)
    asked_BQH = positions.of(hidden_BLH)
    context_BQH = heads.attend(
        heads.parted(attention.q_lin(asked_BQH)),
        heads.parted(attention.k_lin(hidden_BLH)),
        heads.parted(attention.v_lin(hidden_BLH)),
        _of_padding(attention_mask),
    )
    attended_BQH = layer.sa_layer_norm(attention.out_lin(context_BQH) + asked_BQH)
    return (layer.output_layer_norm(layer.ffn(attended_BQH) + attended_BQH),)


def _modernbert(
    layer: Any,
    positions: Positions,
    hidden_BLH: Tensor,
    *,
    attention_mask: Tensor,
    sliding_window_mask: Tensor,
    position_ids: Tensor,
    **_: Any,
) -> tuple[Tensor]:
    attention = layer.attn
    heads = _Heads(attention.num_heads, attention.head_dim)
    mask_B1LL = attention_mask if attention.local_attention == (-1, -1) else sliding_window_mask
    qkv_BLX = attention.Wqkv(layer.attn_norm(hidden_BLH))
    query_BLH, key_BLH, value_BLH = (qkv_BLX[..., n * heads.width : (n + 1) * heads.width] for n in range(3))
    cos_1LD, sin_1LD = attention.rotary_emb(hidden_BLH, position_ids=position_ids)
    query_BAQD, key_BALD = heads.parted(positions.of(query_BLH)), heads.parted(key_BLH)
    context_BQH = heads.attend(
        heads.rotated(query_BAQD, positions.of_every_text(cos_1LD), positions.of_every_text(sin_1LD)),
        heads.rotated(key_BALD, cos_1LD, sin_1LD),
        heads.parted(value_BLH),
        positions.of(mask_B1LL[:, 0]).unsqueeze(1),
    )
    out_BQH = positions.of(hidden_BLH) + attention.Wo(context_BQH)
    return (out_BQH + layer.mlp(layer.mlp_norm(out_BQH)),)


@dataclass(frozen=True)
class _Kind:
    layers: Callable[[Any], nn.ModuleList]
    forward: Callable[..., tuple[Tensor]]
    """In the place of the layer's own, with the layer and the positions before its arguments."""
    fits: Callable[[Any], bool]
    """Whether a configuration has the attention that is written out."""


_BERT = _Kind(
    lambda encoder: encoder.encoder.layer,
    _bert,
    lambda config: getattr(config, "position_embedding_type", "absolute") == "absolute",
)
_KINDS: Mapping[str, _Kind] = MappingProxyType(
    {
        "bert": _BERT,
        "roberta": _BERT,
        "xlm-roberta": _BERT,
        "electra": _BERT,
        "distilbert": _Kind(
            lambda encoder: encoder.transformer.layer,
            _distilbert,
            lambda config: config._attn_implementation == "sdpa",
        ),
        "modernbert": _Kind(
            lambda encoder: encoder.layers,
            _modernbert,
            lambda config: config._attn_implementation in ("eager", "sdpa"),
        ),
    }
)
"""Keyed by `model_type`."""
