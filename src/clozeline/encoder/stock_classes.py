"""Positions, which configurations count each in their own way."""

from transformers import PretrainedConfig

_POSITIONS_AFTER_PAD = frozenset({"camembert", "longformer", "roberta", "xlm-roberta"})


def first_position(config: PretrainedConfig) -> int:
    """RoBERTa and its kin count positions from `pad_token_id` + 1 on: so many rows of the table no token ever has."""
    return int(config.pad_token_id) + 1 if config.model_type in _POSITIONS_AFTER_PAD else 0


def longest_row_of(config: PretrainedConfig) -> int:
    """Tokens that the positions allow."""
    return int(config.max_position_embeddings) - first_position(config)
