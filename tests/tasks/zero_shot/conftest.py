"""An encoder that was pre-trained to know topics by their words."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from clozeline.tasks.training import use_threads
from clozeline.tokenizing.tokenizer.folder import SPECIAL_TOKENS
from tests.make.models import small_modernbert
from tests.tasks.zero_shot.topics import ABOUT, FILLER, TOPICS, topical


@pytest.fixture(scope="session")
def topical_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a small ModernBERT, pre-trained on texts that end by naming their topic; the mask stands for it."""
    from transformers import ModernBertForMaskedLM

    folder = tmp_path_factory.mktemp("topical")
    tokenizer = _tokenizer()
    config = small_modernbert()
    config.vocab_size = len(tokenizer)
    use_threads(1)
    torch.manual_seed(0)
    model = ModernBertForMaskedLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for records in _batches(topical(400, seed=100), num_epochs=16):
        inputs = tokenizer([f"{it['text']} {ABOUT} [MASK]" for it in records], return_tensors="pt", padding=True)
        topics_B = torch.tensor(tokenizer.convert_tokens_to_ids([it["label"] for it in records]))
        logits_BV = model(**inputs).logits[inputs["input_ids"] == tokenizer.mask_token_id]
        torch.nn.functional.cross_entropy(logits_BV, topics_B).backward()
        optimizer.step()
        optimizer.zero_grad()
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


def _batches(records: list[dict[str, str]], num_epochs: int) -> Iterator[list[dict[str, str]]]:
    draw = random.Random(0)
    for _ in range(num_epochs):
        order = draw.sample(records, len(records))
        yield from (order[start : start + 32] for start in range(0, len(order), 32))


def _tokenizer() -> Any:
    """Return a tokenizer with one token for each word."""
    from tokenizers import BertWordPieceTokenizer
    from transformers import PreTrainedTokenizerFast

    words = [*SPECIAL_TOKENS.values(), *TOPICS, *FILLER, *ABOUT.split(), *" ".join(TOPICS.values()).split()]
    vocab = {word: number for number, word in enumerate(words)}
    return PreTrainedTokenizerFast(
        tokenizer_object=BertWordPieceTokenizer(vocab=vocab)._tokenizer,
        model_input_names=["input_ids", "attention_mask"],
        **SPECIAL_TOKENS,
    )
