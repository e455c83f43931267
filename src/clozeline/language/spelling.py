"""Spelling of a tokenizer's tokens: the id of each token text, and which tokens continue the preceding word.

The two ends of a token decide whether it can continue a word and be continued. The tokenizer's own marks define a word
(`##`, `</w>`). Where they show only spaces (byte-level BPE, SentencePiece), a word is a run of letters and digits, so
neither punctuation nor a space that is a token of its own belongs to a word. In scripts written without spaces every
token is a word.

Shapes: N tokens, V vocabulary.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Generic, NamedTuple, Self, TypeVar

import numpy as np

from clozeline.language.draws import Flags, Ids
from clozeline.system.errors import ArtifactError

Flag = TypeVar("Flag")
_SPACE_MARK = "▁"
# UTF-8 continuation bytes.
_CONTINUATION = bytes(range(0x80, 0xC0))
_FALLBACK_BYTE = re.compile(r"<0x([0-9A-F]{2})>")

# Thai and Lao, Myanmar, Khmer, kana, ideographs.
_WITHOUT_SPACES = (
    (0x0E00, 0x0EFF),
    (0x1000, 0x109F),
    (0x1780, 0x17FF),
    (0x3040, 0x30FF),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0xFF66, 0xFF9F),
    (0x20000, 0x3FFFF),
)

_TOKENIZER_FILE = "tokenizer.json"


class Ends(NamedTuple, Generic[Flag]):
    """Properties of one token, or, as arrays, of a vocabulary."""

    can_continue: Flag  # the token may belong to the preceding word
    can_be_continued: Flag  # the following token may belong to its word
    # The token begins with a later byte of a character, so it belongs to the preceding token, whatever that is.
    begins_in_character: Flag
    is_rest_of_character: Flag  # the token holds only later bytes of a character


Reader = Callable[[str], Ends[bool]]
_ALONE = Ends(False, False, False, False)


def reader_for(description: Mapping[str, Any], tokens: Iterable[str]) -> Reader | None:
    """Return the reader of tokens for the tokenizer.json `description`; None if they do not mark where words begin."""
    model = description["model"]
    if model["type"] == "WordLevel":
        return lambda _: _ALONE
    if prefix := model.get("continuing_subword_prefix"):
        return lambda token: Ends(token.startswith(prefix), True, False, False)
    if suffix := model.get("end_of_word_suffix"):
        return lambda token: Ends(True, not token.endswith(suffix), False, False)
    if '"ByteLevel"' in json.dumps(description["pre_tokenizer"]):
        bytes_of = _byte_alphabet()
        return lambda token: _ends_of_bytes(bytes(bytes_of[character] for character in token))
    if any(_SPACE_MARK in token for token in tokens):
        return lambda token: _ends_of_bytes(_bytes_of_piece(token))
    return None


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's byte alphabet (Radford et al. 2019, encoder.py): printable Latin-1 as is, the rest from Ā on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


def _bytes_of_piece(piece: str) -> bytes:
    if match := _FALLBACK_BYTE.fullmatch(piece):
        return bytes([int(match[1], 16)])
    return piece.encode("utf-8")  # neither the space mark nor a space is a letter


def _ends_of_bytes(raw: bytes) -> Ends[bool]:
    whole = raw.lstrip(_CONTINUATION)  # starts at the first character that begins here
    if not whole:
        return Ends(False, False, bool(raw), bool(raw))
    first = whole[: len(whole) - len(whole[1:].lstrip(_CONTINUATION))]
    last = whole[len(whole.rstrip(_CONTINUATION)) - 1 :]
    begins_inside = len(whole) < len(raw)
    return Ends(not begins_inside and _is_in_words(first), _is_in_words(last), begins_inside, False)


@cache
def _is_in_words(start: bytes) -> bool:
    """Return whether the character that begins with the bytes `start` belongs to words.

    For an incomplete character, return whether most characters with this start do.
    """
    first, last = _code_points(start)
    characters = [chr(code_point) for code_point in range(first, last + 1)]
    assigned = [character for character in characters if unicodedata.category(character) != "Cn"]
    return 2 * sum(map(_is_letter, assigned)) > len(assigned)


def _code_points(start: bytes) -> tuple[int, int]:
    """Return the lowest and highest code point whose UTF-8 begins with `start` (RFC 3629, section 3)."""
    lead = start[0]
    length = 1 if lead < 0xC0 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
    value = lead if length == 1 else lead & (0x7F >> length)
    for byte in start[1:length]:
        value = value << 6 | byte & 0x3F
    missing = 6 * (length - len(start[:length]))
    return min(value << missing, 0x10FFFF), min((value + 1 << missing) - 1, 0x10FFFF)


def _is_letter(character: str) -> bool:
    """Return whether it is a letter, a digit, or one of their marks (vowel signs, accents), in a script with spaces."""
    if not (character.isalnum() or unicodedata.category(character).startswith("M")):
        return False
    return not any(first <= ord(character) <= last for first, last in _WITHOUT_SPACES)


@dataclass(frozen=True)
class Spelling:
    """Spelling of a vocabulary.

    A token continues a word if it can continue one, the token before it can be continued, and the two touch.
    """

    ids: Mapping[str, int]  # id of every token, added ones included, as the vocabulary spells it
    ends: Ends[Flags]  # flags indexed by token id
    marks_words: bool  # whether the vocabulary distinguishes the first token of a word from the others

    @classmethod
    def open(cls, tokenizer: Path) -> Self:
        """Read the tokenizer.json of the folder `tokenizer`.

        Raises:
            ArtifactError: the file is missing or damaged.
        """
        path = tokenizer / _TOKENIZER_FILE
        try:
            return cls.of(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, KeyError) as error:
            raise ArtifactError(
                f"{path} cannot be read: {str(error) or type(error).__name__}", do="rebuild it: `dvc repro -f tokenize`"
            ) from error

    @classmethod
    def of(cls, tokenizer_json: str) -> Self:
        """Return the spelling given by the text of a tokenizer.json."""
        description = json.loads(tokenizer_json)
        ids = _vocabulary(description["model"])
        added = {token["content"]: token["id"] for token in description["added_tokens"]}
        read = reader_for(description, ids)
        ends = {id_: read(token) for token, id_ in ids.items()} if read else {}
        for id_ in added.values():  # the tokenizer cuts these out of a text before it looks for words
            ends.pop(id_, None)
        size = max([*ids.values(), *added.values()]) + 1
        return cls({**ids, **added}, _table(ends, size), marks_words=read is not None)

    def continues_word(self, input_ids_N: Ids, follows_N: Flags) -> Flags:
        """Return whether each token belongs to the word of the token before it.

        Args:
            input_ids_N: token ids in reading order.
            follows_N: whether the preceding token of the array also precedes it in the document.
        """
        # A token that holds only the rest of a character ends like the token that began the character.
        begins_N = ~self.ends.is_rest_of_character[input_ids_N]
        head_N = np.maximum.accumulate(np.where(begins_N, np.arange(len(input_ids_N)), 0))
        can_be_continued_N = self.ends.can_be_continued[input_ids_N[head_N]]
        continues_N = self.ends.can_continue[input_ids_N] & follows_N
        continues_N[1:] &= can_be_continued_N[:-1]
        return continues_N | (self.ends.begins_in_character[input_ids_N] & follows_N)


def _vocabulary(model: Mapping[str, Any]) -> dict[str, int]:
    """Return the id of each token. Unigram lists its pieces in the order of ids; other models map token to id."""
    if isinstance(model["vocab"], list):
        return {token: id_ for id_, (token, _) in enumerate(model["vocab"])}
    return dict(model["vocab"])


def _table(ends: Mapping[int, Ends[bool]], size: int) -> Ends[Flags]:
    table = np.zeros((len(Ends._fields), size), dtype=bool)
    if ends:
        table[:, list(ends)] = np.array(list(ends.values()), dtype=bool).T
    return Ends(*table)
