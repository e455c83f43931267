"""Activations that a forward pass keeps for the backward pass, counted in numbers per token."""

from clozeline.language_modelling.detection import parts_of
from clozeline.language_modelling.language_model import LanguageModel, head_of
from clozeline.params import PretrainParams
from clozeline.planning.compute import hidden_size, num_layers, padded_length, window_of
from clozeline.planning.counting import encoder_matrices


def kept_per_token(model: LanguageModel, params: PretrainParams, *, is_on_cpu: bool) -> float:
    """Return the numbers kept per token over all layers, for rows of `params.max_length` tokens.

    Outside attention each layer keeps 8·hidden and both sides of the MLP's inner width (Korthikanti et al. 2022,
    section 4.1); attention and family-specific terms are added below. With gradient checkpointing it is hidden for each
    layer, plus one whole layer.
    """
    return sum(_kept_by_part(part, params, is_on_cpu) for part in parts_of(model))


def _kept_by_part(model: LanguageModel, params: PretrainParams, is_on_cpu: bool) -> float:
    hidden, matrices = hidden_size(model), list(encoder_matrices(model))
    widest_out, widest_in = (max((matrix.shape[axis] for matrix in matrices), default=hidden) for axis in (0, 1))
    layer = 8 * hidden + widest_out + widest_in + _kept_by_attention(model, params, is_on_cpu)
    if params.model.dropout:
        layer += 2 * hidden  # dropout masks
    if hasattr(model.config, "local_attention"):  # ModernBERT: rotated queries and keys; the gated MLP
        layer += 2 * hidden + widest_in
    kept = num_layers(model) * hidden + layer if params.gradient_checkpointing else num_layers(model) * layer
    if head_of(model) == "clm" and hasattr(model.config, "layer_types"):  # ModernBERT's two masks over all pairs
        kept += 2 * params.max_length
    return kept * padded_length(model, params.max_length) / params.max_length


def _kept_by_attention(model: LanguageModel, params: PretrainParams, is_on_cpu: bool) -> float:
    """Return the numbers that attention keeps. Fused attention keeps no scores; with dropout a CPU does not fuse it."""
    drops = params.model.attention_dropout > 0
    num_heads: int = getattr(model.config, "num_attention_heads", 0)
    window = window_of(model)
    if window is not None:  # Longformer: scores, and overlapping chunks of scores, queries, keys and values
        return num_heads * window * (2.5 + drops) + 5 * hidden_size(model)
    is_written_out = getattr(model.config, "_attn_implementation", None) == "eager"
    num_scores = num_heads * params.max_length
    if not is_written_out:
        return 3 * num_scores if drops and is_on_cpu else 0
    return (3 if drops else 1) * num_scores + _kept_by_relative_positions(model, num_heads, params.max_length)


def _kept_by_relative_positions(model: LanguageModel, num_heads: int, length: int) -> float:
    """Return the numbers that DeBERTa's relative positions keep (He et al. 2020, equation 4).

    These are content-to-position and position-to-content scores, and the projected positions, computed for each row.
    """
    num_positions = 2 * getattr(model.config, "position_buckets", 0)
    if not num_positions:
        return 0
    return 2 * num_heads * num_positions + (2 * num_positions / length + 1) * hidden_size(model)
