"""Small outputs of stages: a model with random weights, and a tokenizer trained on five sentences."""

from collections.abc import Sequence
from typing import Any

from clozeline.tokenizing.tokenizer.folder import SPECIAL_TOKENS

SENTENCES = [
    "the encoder reads a sentence and fills in the word that is missing",
    "a tokenizer cuts text into pieces that the model has seen before",
    "returns a tensor of the same shape, with padded rows at the end",
    "raises an error if the file is empty or its hash is not the one given",
    "small models answer quickly on ordinary processors",
]


def word_pieces(texts: Sequence[str], vocab_size: int) -> dict[str, int]:
    """Ids of so many WordPieces of lower-case `texts`, or fewer, after the special ones; the same in every process.

    Left to itself, the trainer numbers `##a`, `##b` … as it meets them in a hash map, and breaks ties by these numbers.
    """
    from tokenizers import BertWordPieceTokenizer

    letters = sorted(set("".join(texts)) - {" "})
    trainer = BertWordPieceTokenizer()
    trainer.train_from_iterator(
        texts,
        vocab_size=vocab_size,
        initial_alphabet=letters,
        special_tokens=[*SPECIAL_TOKENS.values(), *(f"##{letter}" for letter in letters if letter.isalnum())],
        show_progress=False,
    )
    pieces: dict[str, int] = trainer.get_vocab()
    return pieces


def sentence_tokenizer() -> Any:
    from tokenizers import BertWordPieceTokenizer
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=BertWordPieceTokenizer(vocab=word_pieces(SENTENCES, vocab_size=200))._tokenizer,
        model_input_names=["input_ids", "attention_mask"],
        **SPECIAL_TOKENS,
    )


def small_modernbert() -> Any:
    from transformers import ModernBertConfig

    return ModernBertConfig(
        vocab_size=90,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=64,
        global_attn_every_n_layers=2,
        local_attention=16,
        pad_token_id=0,
        bos_token_id=2,
        cls_token_id=2,
        eos_token_id=3,
        sep_token_id=3,
        reference_compile=False,
    )


def small_bert() -> Any:
    """With an embedding for the second text of a pair."""
    from transformers import BertConfig

    return BertConfig(
        vocab_size=200,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=128,
        pad_token_id=0,
    )


def outspoken(model: Any) -> Any:
    """`model` with larger weights in its first and last layer: with random weights, its output is nearly equal for
    every token."""
    import torch

    head = next(layer for layer in reversed(list(model.modules())) if isinstance(layer, torch.nn.Linear))
    table = model.get_input_embeddings()
    with torch.no_grad():
        table.weight *= 50
        if (
            head.weight is not table.weight
        ):  # tied ones are large already: float32 would round off more than parity allows
            head.weight *= 20
    return model
