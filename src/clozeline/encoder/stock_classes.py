"""Positions of published configurations, which count them in different ways."""

from transformers import PretrainedConfig

_POSITIONS_AFTER_PAD = frozenset({"camembert", "longformer", "mpnet", "roberta", "xlm-roberta"})


def first_position(config: PretrainedConfig) -> int:
    """Return the first row of the position table in use: `pad_token_id` + 1 for RoBERTa's relatives, else 0."""
    return int(config.pad_token_id) + 1 if config.model_type in _POSITIONS_AFTER_PAD else 0


def longest_row_of(config: PretrainedConfig) -> int:
    """Return the longest row that the positions allow, in tokens."""
    return int(config.max_position_embeddings) - first_position(config)
