"""A tag for each word, as transformers' `examples/pytorch/token-classification/run_ner.py` does it.

A reimplementation of its documented behaviour: words are tokenized as they are, the first token of each is its target.
`DataCollatorForTokenClassification` pads rows to the longest of a batch (`--pad_to_max_length` is off by default).
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

from transformers import AutoModelForTokenClassification, DataCollatorForTokenClassification

from comparison.their_tasks import PARTS, Recipe, opened

_NO_TARGET = -100
_OUTSIDE = "O"


def answers(parts: Path, weights: Path, recipe: Recipe) -> list[list[str]]:
    """Return a tag for each word of the test part; a word that was cut off is tagged as outside."""
    with opened(parts, weights, recipe) as script:
        tags = sorted({tag for tags in script.parts["train"]["ner_tags"] for tag in tags})
        place = {tag: number for number, tag in enumerate(tags)}
        model = AutoModelForTokenClassification.from_pretrained(weights, num_labels=len(tags))

        def tokenize(examples: dict[str, list[list[str]]]) -> Any:
            rows = script.tokenizer(
                examples["tokens"], truncation=True, max_length=recipe.max_length, is_split_into_words=True
            )
            firsts = [_first_tokens(rows.word_ids(number)) for number in range(len(examples["tokens"]))]
            labels = [[_NO_TARGET] * len(ids) for ids in rows["input_ids"]]
            for of_row, first, words in zip(labels, firsts, examples["ner_tags"], strict=True):
                for token, word in first.items():
                    of_row[token] = place.get(words[word], _NO_TARGET)
            return rows | {"labels": labels, "first_tokens": [list(first.items()) for first in firsts]}

        rows = {part: script.mapped(part, tokenize) for part in PARTS}
        first_tokens, sentences = list(rows["test"]["first_tokens"]), list(script.parts["test"]["tokens"])
        collator = DataCollatorForTokenClassification(script.tokenizer)
        said_SL = script.predict(model, collator, rows).argmax(axis=2)
        predicted = [[_OUTSIDE] * len(words) for words in sentences]
        for of_sentence, first, said_L in zip(predicted, first_tokens, said_SL.tolist(), strict=True):
            for token, word in first:
                of_sentence[word] = tags[said_L[token]]
        return predicted


def _first_tokens(words: list[int | None]) -> dict[int, int]:
    """Return position of the first token of each word → index of the word."""
    pairs = enumerate(pairwise([None, *words]))
    return {token: word for token, (before, word) in pairs if word is not None and word != before}
