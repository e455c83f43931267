"""What transformers' classes say of themselves, each in its own way."""

from transformers import PretrainedConfig, PreTrainedModel

_POSITIONS_AFTER_PAD = frozenset({"camembert", "longformer", "roberta", "xlm-roberta"})


def attention_of(model_class: type[PreTrainedModel]) -> str:
    """PyTorch's fused attention where the class has it; else its own."""
    return "sdpa" if model_class._supports_sdpa else "eager"


def first_position(config: PretrainedConfig) -> int:
    """RoBERTa and its kin count positions from `pad_token_id` + 1 on: so many rows of the table no token ever has."""
    return int(config.pad_token_id) + 1 if config.model_type in _POSITIONS_AFTER_PAD else 0


def longest_row_of(config: PretrainedConfig) -> int:
    """Tokens that the positions allow."""
    return int(config.max_position_embeddings) - first_position(config)
