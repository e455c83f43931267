"""What a forward pass leaves to the backward pass, in numbers for each token."""

from clozeline.encoder.detection import parts_of
from clozeline.encoder.language_model import LanguageModel, objective_of
from clozeline.params import PretrainParams
from clozeline.planning.compute import hidden_size, num_layers, padded_length, window_of
from clozeline.planning.counting import layer_matrices


def kept_per_token(model: LanguageModel, params: PretrainParams, *, is_on_cpu: bool) -> float:
    """Of all layers, in rows of `params.max_length` tokens.

    Korthikanti et al. 2022, section 4.1, without what attention stores: 8·hidden and both sides of the MLP's inner
    width for each layer; what families keep beside it is added below. Recomputed: hidden for each layer, and one layer
    whole.
    """
    return sum(_kept_by_part(part, params, is_on_cpu) for part in parts_of(model))


def _kept_by_part(model: LanguageModel, params: PretrainParams, is_on_cpu: bool) -> float:
    hidden, matrices = hidden_size(model), list(layer_matrices(model))
    widest_out, widest_in = (max((matrix.shape[axis] for matrix in matrices), default=hidden) for axis in (0, 1))
    layer = 8 * hidden + widest_out + widest_in + _kept_by_attention(model, params, is_on_cpu)
    if params.model.dropout:
        layer += 2 * hidden  # which of them were dropped
    if hasattr(model.config, "local_attention"):  # ModernBERT: queries and keys, turned; the MLP times its gate
        layer += 2 * hidden + widest_in
    kept = num_layers(model) * hidden + layer if params.gradient_checkpointing else num_layers(model) * layer
    if objective_of(model) == "clm" and hasattr(model.config, "layer_types"):  # ModernBERT's two masks, of all pairs
        kept += 2 * params.max_length
    return kept * padded_length(model, params.max_length) / params.max_length


def _kept_by_attention(model: LanguageModel, params: PretrainParams, is_on_cpu: bool) -> float:
    """Fused attention keeps no scores, but on a CPU it is not fused where some of them are dropped."""
    drops = params.model.attention_dropout > 0
    num_heads: int = getattr(model.config, "num_attention_heads", 0)
    window = window_of(model)
    if window is not None:  # Longformer: scores, and chunks that overlap of them, of queries, keys and values
        return num_heads * window * (2.5 + drops) + 5 * hidden_size(model)
    is_written_out = getattr(model.config, "_attn_implementation", None) == "eager"
    num_scores = num_heads * params.max_length
    if not is_written_out:
        return 3 * num_scores if drops and is_on_cpu else 0
    return (3 if drops else 1) * num_scores + _kept_by_relative_positions(model, num_heads, params.max_length)


def _kept_by_relative_positions(model: LanguageModel, num_heads: int, length: int) -> float:
    """DeBERTa's: content against each position and back (He et al. 2020, equation 4), positions anew for each row."""
    num_positions = 2 * getattr(model.config, "position_buckets", 0)
    if not num_positions:
        return 0
    return 2 * num_heads * num_positions + (2 * num_positions / length + 1) * hidden_size(model)
