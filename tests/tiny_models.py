"""What stages leave behind, in small: the shape of a model with random weights, and a tokenizer of five sentences."""

from typing import Any

SENTENCES = [
    "the encoder reads a sentence and fills in the word that is missing",
    "a tokenizer cuts text into pieces that the model has seen before",
    "returns a tensor of the same shape, with padded rows at the end",
    "raises an error if the file is empty or its hash is not the one given",
    "small models answer quickly on ordinary processors",
]


def sentence_tokenizer() -> Any:
    from tokenizers import BertWordPieceTokenizer
    from transformers import PreTrainedTokenizerFast

    trainer = BertWordPieceTokenizer()
    trainer.train_from_iterator(SENTENCES, vocab_size=200, show_progress=False)
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    return PreTrainedTokenizerFast(
        tokenizer_object=BertWordPieceTokenizer(vocab=trainer.get_vocab())._tokenizer,
        model_input_names=["input_ids", "attention_mask"],
        **names,
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
    """`model` with larger weights where it begins and ends: as drawn, it says nearly the same of every token."""
    import torch

    head = next(layer for layer in reversed(list(model.modules())) if isinstance(layer, torch.nn.Linear))
    with torch.no_grad():
        model.get_input_embeddings().weight *= 50
        head.weight *= 20
    return model
