"""Texts with a prompt behind them, and the words that stand for labels.

Shapes: T texts, W words of a label.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from clozeline.errors import ParamsError
from clozeline.params.finetuning.zero_shot import BLANK
from clozeline.tasks.text_rows import Ids, TextRows
from clozeline.tokenizer.folder import OpenTokenizer, is_byte_level


def prompted(texts: Sequence[str], prompt: str, opened: OpenTokenizer, max_length: int) -> TextRows:
    """Each text, cut so that the prompt behind it is whole; an empty one is the prompt alone.

    Raises:
        ParamsError: the prompt leaves no room for a text.
    """
    ids, tail = opened.special_ids, _tail(prompt, opened, max_length)
    room = max_length - len(tail) - 1
    opened.tokenizer.no_truncation()
    encodings = opened.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    ids_T = tuple(np.array([ids.cls, *encoding.ids[:room], *tail], dtype=np.int64) for encoding in encodings)
    return TextRows(ids_T, ids.pad, sum(len(encoding.ids) > room for encoding in encodings))


def prompted_lengths(texts: Sequence[str], prompt: str, opened: OpenTokenizer, max_length: int) -> Ids:
    """`length_T`: tokens of each whole text with the prompt behind it, special ones too; raises as `prompted`."""
    tail = _tail(prompt, opened, max_length)
    opened.tokenizer.no_truncation()
    encodings = opened.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    return 1 + np.array([len(encoding.ids) for encoding in encodings], dtype=np.int64) + len(tail)


def word_ids(
    labels: Sequence[str], label_words: Mapping[str, Sequence[str]] | None, opened: OpenTokenizer
) -> list[Ids]:
    """For each label the tokens of its words.

    Raises:
        ParamsError: a label has no words, or a word is not one known token.
    """
    found = []
    space = " " if is_byte_level(opened.tokenizer) else ""
    for label in labels:
        words = [label] if label_words is None else label_words.get(label, ())
        tokens = [_tokens(f"{space}{word}", opened) for word in words]
        wrong = [word for word, ids in zip(words, tokens, strict=True) if len(ids) != 1 or ids[0] in _special(opened)]
        if wrong or not words:
            raise ParamsError(
                f"params.yaml: label `{label}` of the task has no words that the model could fill in",
                given=", ".join(wrong) or "no words",
                expected="words that are one token each",
                do=f"name others: `label_words: {{{label}: [WORD, …], …}}`",
            )
        found.append(np.array([ids[0] for ids in tokens], dtype=np.int64))
    return found


def _tail(prompt: str, opened: OpenTokenizer, max_length: int) -> list[int]:
    """All that follows a text."""
    before, _, after = prompt.partition(BLANK)
    tail = [*_tokens(before, opened), opened.special_ids.mask, *_tokens(after, opened), opened.special_ids.sep]
    if len(tail) + 1 < max_length:
        return tail
    raise ParamsError(
        "params.yaml: `prompt` of the task leaves no room for a text",
        given=f"{len(tail)} tokens",
        expected=f"fewer than {max_length - 1} (`max_length`)",
        do="shorten it, or raise `max_length`",
    )


def _tokens(text: str, opened: OpenTokenizer) -> list[int]:
    ids: list[int] = opened.tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def _special(opened: OpenTokenizer) -> tuple[int, ...]:
    return opened.special_ids.every
