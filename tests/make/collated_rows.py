"""Rows of a small language, tokenizers of two kinds, and the batches that collators make of the rows."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from torch.utils.data import DataLoader
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

from clozeline.tokenizing.tokenizer.folder import SPECIAL_TOKENS
from tests.make.models import word_pieces

Rows = list[dict[str, list[int]]]


def sentences(count: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    syllables = ["ka", "to", "mi", "re", "su", "lon", "ber", "ge", "shi", "vo", "tri", "ple"]
    words = ["".join(draw.choices(syllables, k=draw.randint(1, 4))) for _ in range(300)]
    return [" ".join(draw.choices(words, k=draw.randint(3, 30))) + "." for _ in range(count)]


def framed(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    ends = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL_TOKENS)


def wordpiece_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordPiece(word_pieces(sentences(300), vocab_size=110), unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS.values()))
    return framed(tokenizer)


def byte_level_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=list(SPECIAL_TOKENS.values()), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(sentences(300), trainer)
    return framed(tokenizer)


def collated(collator: Any, rows: Sequence[Any], batch_size: int = 16, **loading: Any) -> list[tuple[Any, Any]]:
    """Return (input ids, labels) of each row without padding, in the order of the loader."""
    loader: Any = DataLoader(rows, batch_size=batch_size, collate_fn=collator, **loading)
    return [pair for batch in loader for pair in pairs_of(batch)]


def pairs_of(batch: Any) -> list[tuple[Any, Any]]:
    rows = zip(batch["input_ids"], batch["labels"], batch["attention_mask"].bool(), strict=True)
    return [(tuple(ids[kept].tolist()), tuple(labels[kept].tolist())) for ids, labels, kept in rows]


def theirs(tokenizer: PreTrainedTokenizerFast, **settings: Any) -> DataCollatorForLanguageModeling:
    return DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15, **settings)


def labels_of(batch: Any) -> np.ndarray:
    labels: np.ndarray = batch["labels"].numpy()
    return labels


def even_rows(
    tokenizer: PreTrainedTokenizerFast, count: int, length: int, after_a_word: str = " "
) -> list[dict[str, Any]]:
    """Return rows of equal length with offsets and a mask of special tokens, as transformers' collator needs them."""
    encoded = tokenizer(
        [" ".join(sentences(8, seed)).replace(" ", after_a_word) for seed in range(count)],
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
        truncation=True,
        max_length=length,
    )
    return [{name: encoded[name][row] for name in encoded} for row in range(count)]
