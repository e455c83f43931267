"""Texts followed by a prompt, and the words that stand for labels.

Shapes: T texts, W words of a label.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from clozeline.errors import ParamsError
from clozeline.params.finetuning.zero_shot import BLANK
from clozeline.tasks.text_rows import Ids, TextRows
from clozeline.tokenizer.folder import OpenTokenizer, is_byte_level


def prompted(texts: Sequence[str], prompt: str, opened: OpenTokenizer, max_length: int) -> TextRows:
    """Return rows of each text followed by the whole prompt; a long text is cut, an empty text leaves the prompt alone.

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
    """Return `length_T`: tokens of each whole text followed by the prompt, including special tokens. Raises what
    `prompted` raises.
    """
    tail = _tail(prompt, opened, max_length)
    opened.tokenizer.no_truncation()
    encodings = opened.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    return 1 + np.array([len(encoding.ids) for encoding in encodings], dtype=np.int64) + len(tail)


def word_ids(
    labels: Sequence[str], label_words: Mapping[str, Sequence[str]] | None, opened: OpenTokenizer
) -> list[Ids]:
    """Return for each label the tokens of its words.

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
                f"words of label `{label}` of the task cannot be filled in as one token: {', '.join(wrong) or 'none'}",
                do=f"name others: `label_words: {{{label}: [WORD, …], …}}`",
            )
        found.append(np.array([ids[0] for ids in tokens], dtype=np.int64))
    return found


def _tail(prompt: str, opened: OpenTokenizer, max_length: int) -> list[int]:
    """Return the tokens after a text: the prompt with a mask for its blank, and the separator."""
    before, _, after = prompt.partition(BLANK)
    tail = [*_tokens(before, opened), opened.special_ids.mask, *_tokens(after, opened), opened.special_ids.sep]
    if len(tail) + 1 < max_length:
        return tail
    raise ParamsError(
        f"`prompt` of the task has {len(tail)} tokens and leaves no room for a text: `max_length` is {max_length}",
        do="shorten `prompt`, or raise `max_length`",
    )


def _tokens(text: str, opened: OpenTokenizer) -> list[int]:
    ids: list[int] = opened.tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def _special(opened: OpenTokenizer) -> tuple[int, ...]:
    return opened.special_ids.every
