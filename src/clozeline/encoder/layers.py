"""Layers of all our encoders and their heads, as selected by `Architecture`; pooling of tokens; and a cheaper dropout.

Training, evaluation and export run the same code: no branch depends on a tensor's values.

Dropout draws its random numbers at a fifth of torch's cost on a CPU, where torch draws one float after another: one
draw of 64 bits decides four elements. With 16 bits each, rates are multiples of 1/65,536, and the scale matches the
rounded rate exactly.

Shapes: B rows or texts, L tokens, H hidden, E width of the tables, A heads, D dimensions of a head, C outputs, X any
axis; Q requested positions of each row; P the requested positions in the shape of `Positions`. If all are requested, Q
is L, P is [B, L].
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from clozeline.encoder.architecture import Architecture, HeadShape, LayerKind, Positions, activation_of

_STEPS = 2**16
_LOWEST_64 = -(2**63)
_LOWEST_16 = -(2**15)


class DropoutOf16Bits(nn.Dropout):
    """`nn.Dropout` with other random numbers on a CPU; plain `nn.Dropout` on other devices."""

    def forward(self, input: Tensor) -> Tensor:
        steps = round(self.p * _STEPS)
        if not self.training or steps in (0, _STEPS) or input.device.type != "cpu":
            return super().forward(input)
        draws = torch.empty(-(-input.numel() // 4), dtype=torch.int64).random_(_LOWEST_64, None)
        bits = draws.view(torch.int16)[: input.numel()].view(input.shape)
        kept = (bits >= _LOWEST_16 + steps).to(input.dtype).mul_(_STEPS / (_STEPS - steps))
        return input * kept


class Hidden(NamedTuple):
    """Output of an encoder."""

    last_hidden_state: Tensor  # [B, L, H], or [P, H] at requested positions


@dataclass(frozen=True)
class Sight:
    """Attention mask of a layer, and rotary positions of its queries and keys."""

    # True where attention may look; broadcasts to [B, A, Q, L]. None: everywhere, or up to the query if causal.
    mask: Tensor | None
    is_causal: bool  # whether a position sees only itself and earlier positions; False if `mask` is already causal
    # Cosine and sine for each query, [B or 1, Q, D]; None: no rotary positions.
    query_turns: tuple[Tensor, Tensor] | None
    key_turns: tuple[Tensor, Tensor] | None


class Embeddings(nn.Module):
    def __init__(self, of: Architecture) -> None:
        super().__init__()
        width = of.table_width
        self.tokens = nn.Embedding(of.vocab_size, width, padding_idx=of.pad_id)
        pad_position = of.pad_id if of.counts_from_pad else None
        self.positions = nn.Embedding(of.num_positions, width, padding_idx=pad_position) if of.num_positions else None
        self.types = nn.Embedding(of.num_types, width) if of.num_types else None
        self.norm = nn.LayerNorm(width, of.norm_epsilon, bias=of.has_norm_bias)
        self.dropout = DropoutOf16Bits(of.dropouts.embedding)
        self._pad_id = of.pad_id if of.counts_from_pad else None

    def forward(self, input_ids_BL: Tensor, token_type_ids_BL: Tensor | None) -> Tensor:
        """Return `hidden_BLE`."""
        sum_BLE = self.tokens(input_ids_BL)
        if self.types is not None:
            sum_BLE = sum_BLE + (self.types.weight[0] if token_type_ids_BL is None else self.types(token_type_ids_BL))
        if self.positions is not None:
            sum_BLE = sum_BLE + self._positions(self.positions, input_ids_BL)
        hidden_BLE: Tensor = self.dropout(self.norm(sum_BLE))
        return hidden_BLE

    def _positions(self, table: nn.Embedding, input_ids_BL: Tensor) -> Tensor:
        if self._pad_id is None:
            return table.weight[: input_ids_BL.shape[1]]
        is_real_BL = (input_ids_BL != self._pad_id).long()
        position_BLE: Tensor = table(is_real_BL.cumsum(dim=1) * is_real_BL + self._pad_id)
        return position_BLE


class Attention(nn.Module):
    def __init__(self, of: Architecture) -> None:
        super().__init__()
        self.num_heads, hidden, bias = of.num_heads, of.hidden_size, of.has_attention_bias
        self.is_fused = of.is_fused
        if of.is_fused:
            self.query_key_value = nn.Linear(hidden, 3 * hidden, bias=bias)
        else:
            self.query, self.key, self.value = (nn.Linear(hidden, hidden, bias=bias) for _ in range(3))
        self.output = nn.Linear(hidden, hidden, bias=bias)
        self.dropout = DropoutOf16Bits(of.dropouts.attention)
        self.output_dropout = DropoutOf16Bits(of.dropouts.attention_output)

    def forward(self, hidden_BLH: Tensor, sight: Sight, positions: Positions | None) -> Tensor:
        """Return `hidden_PH`, to be added to the residual stream."""
        query_BQAD, key_BLAD, value_BLAD = self._queries_keys_values(hidden_BLH, positions)
        context_BAQD = self._attended(
            _turned(query_BQAD, sight.query_turns).transpose(1, 2),
            _turned(key_BLAD, sight.key_turns).transpose(1, 2),
            value_BLAD.transpose(1, 2),
            sight,
        )
        context_BQH = context_BAQD.transpose(1, 2).flatten(2)
        context_PH = context_BQH if positions is None else positions.from_queries(context_BQH)
        hidden_PH: Tensor = self.output_dropout(self.output(context_PH))
        return hidden_PH

    def _queries_keys_values(self, hidden_BLH: Tensor, positions: Positions | None) -> tuple[Tensor, Tensor, Tensor]:
        if self.is_fused:
            query_BLH, key_BLH, value_BLH = self.query_key_value(hidden_BLH).chunk(3, dim=-1)
            query_PH = query_BLH if positions is None else positions.of(query_BLH)
        else:
            query_PH = self.query(hidden_BLH if positions is None else positions.of(hidden_BLH))
            key_BLH, value_BLH = self.key(hidden_BLH), self.value(hidden_BLH)
        query_BQH = query_PH if positions is None else positions.as_queries(query_PH)
        in_heads = (-1, (self.num_heads, hidden_BLH.shape[-1] // self.num_heads))
        return query_BQH.unflatten(*in_heads), key_BLH.unflatten(*in_heads), value_BLH.unflatten(*in_heads)

    def _attended(self, query_BAQD: Tensor, key_BALD: Tensor, value_BALD: Tensor, sight: Sight) -> Tensor:
        rate = self.dropout.p if self.training else 0.0
        if rate == 0 or query_BAQD.device.type != "cpu":
            return functional.scaled_dot_product_attention(
                query_BAQD, key_BALD, value_BALD, attn_mask=sight.mask, dropout_p=rate, is_causal=sight.is_causal
            )
        # On a CPU, PyTorch's attention with dropout is not fused and draws random numbers slowly.
        score_BAQL = query_BAQD @ key_BALD.transpose(2, 3) * query_BAQD.shape[-1] ** -0.5
        mask = sight.mask
        if sight.is_causal:
            mask = torch.ones(score_BAQL.shape[2:], dtype=torch.bool).tril()
        if mask is not None:
            score_BAQL = score_BAQL.masked_fill(~mask, torch.finfo(score_BAQL.dtype).min)
        weight_BAQL = score_BAQL.softmax(dim=-1).to(value_BALD.dtype)
        context_BAQD: Tensor = self.dropout(weight_BAQL) @ value_BALD
        return context_BAQD


def _turned(values_BXAD: Tensor, turns: tuple[Tensor, Tensor] | None) -> Tensor:
    """Apply rotary positions (Su et al. 2021, equation 34) in fp32; turns are rounded to the dtype of the values, as in
    transformers 5.
    """
    if turns is None:
        return values_BXAD
    cos_BX1D, sin_BX1D = (turn_BXD.to(values_BXAD.dtype).unsqueeze(2) for turn_BXD in turns)
    first_BXAE, second_BXAE = values_BXAD.float().chunk(2, dim=-1)
    turned_BXAD = values_BXAD.float() * cos_BX1D + torch.cat((second_BXAE, first_BXAE), dim=-1) * sin_BX1D
    return turned_BXAD.to(values_BXAD.dtype)


class Mlp(nn.Module):
    def __init__(self, of: Architecture) -> None:
        super().__init__()
        inner = of.intermediate_size
        self.input = nn.Linear(of.hidden_size, 2 * inner if of.is_gated else inner, bias=of.has_mlp_bias)
        self.activation = activation_of(of.activation)
        self.inner_dropout = DropoutOf16Bits(of.dropouts.mlp_inner)
        self.output = nn.Linear(inner, of.hidden_size, bias=of.has_mlp_bias)
        self.output_dropout = DropoutOf16Bits(of.dropouts.mlp_output)
        self.is_gated = of.is_gated

    def forward(self, hidden_PH: Tensor) -> Tensor:
        """Return `hidden_PH`, to be added to the residual stream."""
        inner_PX = self.input(hidden_PH)
        if self.is_gated:
            inner_PX, gate_PX = inner_PX.chunk(2, dim=-1)
            inner_PX = self.activation(inner_PX) * gate_PX
        else:
            inner_PX = self.activation(inner_PX)
        added_PH: Tensor = self.output_dropout(self.output(self.inner_dropout(inner_PX)))
        return added_PH


class Layer(nn.Module):
    # Rate of stochastic depth per row (Huang et al. 2016, section 3), in pre-norm layers only. Training scales kept
    # outputs up, where the paper scales outputs down after training, so the trained weights are used unchanged.
    skip_rate = 0.0

    def __init__(self, of: Architecture, *, is_first: bool) -> None:
        super().__init__()
        new_norm = partial(nn.LayerNorm, of.hidden_size, of.norm_epsilon, bias=of.has_norm_bias)
        # The norm of the embeddings precedes the first layer.
        self.attention_norm = nn.Identity() if of.is_pre_norm and is_first else new_norm()
        self.attention = Attention(of)
        self.mlp_norm = new_norm()
        self.mlp = Mlp(of)
        self.is_pre_norm = of.is_pre_norm

    def forward(self, hidden_BLH: Tensor, sight: Sight, positions: Positions | None = None) -> Tensor:
        """Return `hidden_PH`."""
        before_PH = hidden_BLH if positions is None else positions.of(hidden_BLH)
        if not self.is_pre_norm:
            hidden_PH = self.attention_norm(before_PH + self.attention(hidden_BLH, sight, positions))
            after_PH: Tensor = self.mlp_norm(hidden_PH + self.mlp(hidden_PH))
            return after_PH
        hidden_PH = before_PH + self.attention(self.attention_norm(hidden_BLH), sight, positions)
        after_PH = hidden_PH + self.mlp(self.mlp_norm(hidden_PH))
        if not (self.training and self.skip_rate):
            return after_PH
        is_kept_B11 = torch.rand(len(hidden_BLH), 1, 1, device=hidden_BLH.device) >= self.skip_rate
        share_BL1 = (is_kept_B11.to(after_PH.dtype) / (1 - self.skip_rate)).expand(-1, hidden_BLH.shape[1], -1)
        share_P1 = share_BL1 if positions is None else positions.of(share_BL1)
        return before_PH + (after_PH - before_PH) * share_P1


class Encoder(nn.Module):
    """Tokens in, hidden states out."""

    def __init__(self, of: Architecture) -> None:
        super().__init__()
        self.architecture = of
        self.embeddings = Embeddings(of)
        is_factorized = of.embedding_size is not None
        self.embedding_projection = nn.Linear(of.table_width, of.hidden_size) if is_factorized else None
        self.layers = nn.ModuleList(Layer(of, is_first=number == 0) for number in range(max(of.uses) + 1))
        final_norm = nn.LayerNorm(of.hidden_size, of.norm_epsilon, bias=of.has_norm_bias)
        self.final_norm = final_norm if of.is_pre_norm else None
        # Whether the backward pass recomputes each layer to save memory (gradient checkpointing, Chen et al. 2016).
        self.recomputes = False

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embeddings.tokens

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        positions: Positions | None = None,
    ) -> Hidden:
        """Return the hidden states at `positions`.

        Args:
            input_ids: [B, L].
            attention_mask: [B, L], nonzero at real tokens; None: all tokens are real.
            token_type_ids: [B, L]; None: all 0.
            positions: positions that the last layer computes; None: all.
        """
        hidden = self.embeddings(input_ids, token_type_ids)
        if self.embedding_projection is not None:
            hidden = self.embedding_projection(hidden)
        kinds, uses = self.architecture.layers, self.architecture.uses
        is_real_BL = None if attention_mask is None else attention_mask.bool()
        every_1L = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        sights = {kind: self._sight(kind, every_1L, every_1L, is_real_BL) for kind in dict.fromkeys(kinds)}
        for kind, use in zip(kinds[:-1], uses[:-1], strict=True):
            hidden = self._through(self.layers[use], hidden, sights[kind])
        last, sight = self.layers[uses[-1]], sights[kinds[-1]]
        if positions is None or not positions.are_few:
            hidden = self._through(last, hidden, sight)
            hidden = hidden if positions is None else positions.of(hidden)
        else:
            sight = self._sight(kinds[-1], positions.queries_BQ().to(input_ids.device), every_1L, is_real_BL)
            hidden = self._through(last, hidden, sight, positions)
        return Hidden(hidden if self.final_norm is None else self.final_norm(hidden))

    def _through(self, layer: nn.Module, *arguments: Any) -> Tensor:
        if self.recomputes and self.training:
            recomputed: Tensor = checkpoint(layer, *arguments, use_reentrant=False)
            return recomputed
        hidden: Tensor = layer(*arguments)
        return hidden

    def _sight(self, kind: LayerKind, position_BQ: Tensor, every_1L: Tensor, is_real_BL: Tensor | None) -> Sight:
        is_whole = position_BQ is every_1L
        mask = self._mask(kind, position_BQ, every_1L, is_real_BL)
        is_causal = self.architecture.is_causal and mask is None
        if kind.rotary_theta is None:
            return Sight(mask, is_causal, None, None)
        head_size = self.architecture.hidden_size // self.architecture.num_heads
        turns = _turns(every_1L, kind.rotary_theta, head_size)
        return Sight(mask, is_causal, turns if is_whole else _turns(position_BQ, kind.rotary_theta, head_size), turns)

    def _mask(self, kind: LayerKind, position_BQ: Tensor, every_1L: Tensor, is_real_BL: Tensor | None) -> Tensor | None:
        """Return [B or 1, 1, Q or 1, L], True where attention may look; None: everywhere, or up to the query."""
        # An exported graph has to serve every length; otherwise short rows need no window.
        reach = kind.reach if torch.compiler.is_exporting() or every_1L.shape[1] > (kind.reach or 0) + 1 else None
        is_causal = self.architecture.is_causal
        if reach is None and not (is_causal and (is_real_BL is not None or position_BQ is not every_1L)):
            return None if is_real_BL is None else is_real_BL[:, None, None]
        distance_BQL = position_BQ[..., None] - every_1L
        sees_BQL = distance_BQL >= 0 if is_causal else torch.ones_like(distance_BQL, dtype=torch.bool)
        if reach is not None:
            sees_BQL = sees_BQL & (distance_BQL.abs() <= reach)
        if is_real_BL is not None:
            # A query far from all real tokens sees itself: with nothing to see, its output would be NaN.
            sees_BQL = sees_BQL & is_real_BL[:, None] | (distance_BQL == 0)
        return sees_BQL[:, None]


def _turns(position_BX: Tensor, theta: float, size: int) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of the rotary angles for both halves of a head, in fp32: `[B, X, D]` each."""
    exponent_E = torch.arange(0, size, 2, dtype=torch.int64, device=position_BX.device).float() / size
    angle_BXE = position_BX[..., None].float() * (1.0 / theta**exponent_E)
    sin_BXE = angle_BXE.sin()
    return torch.cat((angle_BXE, angle_BXE), dim=-1).cos(), torch.cat((-sin_BXE, sin_BXE), dim=-1)


class Head(nn.Module):
    """Head with the parts that `HeadShape` names, in order: dropout, dense, activation, norm, dropout, output."""

    def __init__(self, shape: HeadShape, hidden_size: int) -> None:
        super().__init__()
        self.shape = shape
        width = shape.dense_size or hidden_size
        self.dropout_before = DropoutOf16Bits(shape.dropout_before)
        self.dense = None if shape.dense_size is None else nn.Linear(hidden_size, width, bias=shape.has_dense_bias)
        self.activation = None if shape.activation is None else activation_of(shape.activation)
        epsilon = shape.norm_epsilon
        self.norm = None if epsilon is None else nn.LayerNorm(width, epsilon, bias=shape.has_norm_bias)
        self.dropout_after = DropoutOf16Bits(shape.dropout_after)
        self.output = nn.Linear(width, shape.num_outputs, bias=shape.has_output_bias) if shape.num_outputs else None

    def forward(self, hidden_PH: Tensor) -> Tensor:
        """Return `logits_PC`."""
        hidden_PX = self.dropout_before(hidden_PH)
        for part in (self.dense, self.activation, self.norm, self.dropout_after, self.output):
            if part is not None:
                hidden_PX = part(hidden_PX)
        logits_PC: Tensor = hidden_PX
        return logits_PC


def mean_over_tokens(hidden_BLH: Tensor, attention_mask_BL: Tensor | None) -> Tensor:
    """Return `mean_BH` over real tokens; without a mask, over all tokens."""
    if attention_mask_BL is None:
        return hidden_BLH.mean(dim=1)
    weight_BL1 = attention_mask_BL.unsqueeze(-1).to(hidden_BLH.dtype)
    return (hidden_BLH * weight_BL1).sum(dim=1) / weight_BL1.sum(dim=1)


def first_token(hidden_BLH: Tensor, attention_mask_BL: Tensor) -> Tensor:
    """Return the vector of each text's first token, `first_BH`: that of `[CLS]` or `<s>`."""
    return hidden_BLH[:, 0]


def largest_over_tokens(hidden_BLH: Tensor, attention_mask_BL: Tensor) -> Tensor:
    """Return the largest value of each feature over real tokens, `largest_BH`."""
    is_padding_BL1 = attention_mask_BL.unsqueeze(-1) == 0
    return hidden_BLH.masked_fill(is_padding_BL1, float("-inf")).amax(dim=1)


class PoolingKind(NamedTuple):
    vectors: Callable[[Tensor, Tensor], Tensor]
    switch: str  # key that switches it on in the files of sentence-transformers before version 5
    words: str


# Ways to turn the vectors of tokens into one vector for a text, by the names of sentence-transformers.
POOLINGS: Mapping[str, PoolingKind] = {
    "mean": PoolingKind(
        mean_over_tokens, "pooling_mode_mean_tokens", "mean of the last hidden states where attention_mask is 1"
    ),
    "cls": PoolingKind(first_token, "pooling_mode_cls_token", "last hidden state of the first token"),
    "max": PoolingKind(
        largest_over_tokens, "pooling_mode_max_tokens", "largest value of each feature where attention_mask is 1"
    ),
}


def mean_of_tokens(hidden_BLH: Tensor, attention_mask_BL: Tensor) -> Tensor:
    """Return the mean over unpadded tokens, normalized to length 1 (MEAN pooling, Reimers & Gurevych 2019, section 3):
    [B, H].
    """
    return functional.normalize(mean_over_tokens(hidden_BLH, attention_mask_BL), dim=-1)


def pooled(way: str, hidden_BLH: Tensor, attention_mask_BL: Tensor) -> Tensor:
    """Return the vectors of texts pooled in a way of `POOLINGS`, normalized to length 1: [B, H]."""
    return functional.normalize(POOLINGS[way].vectors(hidden_BLH, attention_mask_BL), dim=-1)
