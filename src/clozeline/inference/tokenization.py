"""Tokenization with the tokenizer of the package, without padding, which open_model.py adds; and errors of inference.

A cache of the ids of words tokenizes a text in a sixth of the time. It works for tokenizers that encode words
independently (records/word_cuts.py). Other tokenizers, and texts with a special token that may absorb its neighbours,
bypass it.

Each fault has an error class, so that a server can name the fault to its clients:

DataError
├── TextError             a fault of one of the texts; `number` says which
│   ├── TextTooLongError
│   ├── NoMaskError
│   ├── MaskCutOffError
│   ├── NotAPairError
│   └── NotUnicodeError
└── TargetError           a target is not one token of the vocabulary
ArtifactError
└── NotANumberError       the graph gave NaN or infinity: a fault of the model, not of the client
"""

import re
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Self

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, Field
from tokenizers import AddedToken, Encoding, Tokenizer

from clozeline.records import word_cuts
from clozeline.system.errors import ArtifactError, DataError

# Number of words in each of two generations. When one is full, the other is dropped, except words used since.
_MOST_WORDS = 2**14
_MOST_CHARACTERS = 24
# Largest number of ids of a cached word. 32,768 words take at most about 20 MB; English ones about 4 MB.
_MOST_IDS = 8
# Number of new words that one text adds. A text with more is encoded as a whole, which is faster.
_MOST_NEW_WORDS = 16
_PROBES = ("a", "a b")

# One text, or a pair of texts.
Given = str | tuple[str, str]
_MAX_CUTTERS = 4


@dataclass(frozen=True)
class _Words:
    pattern: str
    wholes: tuple[str, ...] = ()  # patterns of text that cannot be cut into words
    ends_before: str = ""  # characters that are always words of their own


_WORDS: Mapping[word_cuts.Cut, _Words] = {
    "at punctuation": _Words(
        f"[{re.escape(word_cuts.PUNCTUATION)}]|[^{re.escape(word_cuts.PUNCTUATION + word_cuts.PUNCTUATION_BLANKS)}]+",
        ends_before=word_cuts.PUNCTUATION,
    ),
    "at blanks": _Words(f"[^{word_cuts.WORD_BLANKS}]+"),
    "at blanks unless marked": _Words(f"[^{word_cuts.WORD_BLANKS}]+", (word_cuts.MARK,)),
    "before blanks": _Words(word_cuts.BEFORE_BLANKS.pattern, (word_cuts.ONLY_PYTHON_SAYS_SPACE.pattern,)),
}


class KnownWords:
    """Cache of recent words. It is thread-safe: an update by one thread does not change the result of another."""

    def __init__(self, tokenizer: Tokenizer, words: _Words, before: list[int], after: list[int]) -> None:
        self._tokenizer = tokenizer
        # The tokenizer too prefers the longest match.
        specials = sorted(tokenizer.get_added_tokens_decoder().values(), key=lambda token: -len(token.content))
        cut = [token.content for token in specials if _is_a_word(token, words)]
        wholes = [re.escape(token.content) for token in specials if token.content not in cut]
        self._words = re.compile("|".join([*map(re.escape, cut), words.pattern]))
        self._whole = re.compile("|".join([*wholes, *words.wholes]) or r"(?!)")
        self._before, self._after = before, after
        self._known: dict[str, tuple[int, ...]] = {}
        self._earlier: dict[str, tuple[int, ...]] = {}

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self | None:
        """Return the cache of a tokenizer that neither pads nor truncates; None if its words are not independent."""
        cut, around = word_cuts.cut_of(tokenizer), _around(tokenizer)
        if cut is None or around is None:
            return None
        # A token that is matched in the normalized text may match although the raw text does not contain it.
        if any(token.normalized for token in tokenizer.get_added_tokens_decoder().values()):
            return None
        return cls(tokenizer, _WORDS[cut], *around)

    @property
    def num_words(self) -> int:
        return len(self._known) + len(self._earlier)

    def ids(self, text: str) -> list[int] | None:
        """Return the ids of `text` with special tokens around it; None if the tokenizer has to encode it."""
        if self._whole.search(text):
            return None
        words, known = self._words.findall(text), self._known
        try:
            return self._joined(words, known)
        except KeyError:
            pass
        missing, earlier = dict.fromkeys(word for word in words if word not in known), self._earlier
        found = {word: earlier[word] for word in missing if word in earlier}
        new = [word for word in missing if word not in found]
        found |= self._encoded(new[:_MOST_NEW_WORDS])
        self._keep(found)
        return None if len(new) > _MOST_NEW_WORDS else self._joined(words, ChainMap(found, known))

    def _joined(self, words: Iterable[str], ids: Mapping[str, tuple[int, ...]]) -> list[int]:
        """Return the ids of all words, with special tokens around them.

        Raises:
            KeyError: the ids of a word are missing.
        """
        joined = [*self._before]
        for word in words:
            joined += ids[word]
        joined += self._after
        return joined

    def _encoded(self, words: list[str]) -> dict[str, tuple[int, ...]]:
        encodings = self._tokenizer.encode_batch_fast(words, add_special_tokens=False)
        return {word: tuple(encoding.ids) for word, encoding in zip(words, encodings, strict=True)}

    def _keep(self, found: Mapping[str, tuple[int, ...]]) -> None:
        if len(self._known) >= _MOST_WORDS:
            self._earlier, self._known = self._known, {}
        self._known.update(
            {word: ids for word, ids in found.items() if len(word) <= _MOST_CHARACTERS and len(ids) <= _MOST_IDS}
        )


def _is_a_word(token: AddedToken, words: _Words) -> bool:
    """Whether a special token is always a word of its own and absorbs nothing beside it."""
    takes_more = token.lstrip or token.rstrip or token.single_word
    return not takes_more and token.content.startswith(tuple(words.ends_before))


def _around(tokenizer: Tokenizer) -> tuple[list[int], list[int]] | None:
    """Return the special tokens before and after a text; None if they differ between texts."""
    alone, framed = (tokenizer.encode(_PROBES[0], add_special_tokens=special).ids for special in (False, True))
    for start in range(len(framed) - len(alone) + 1):
        before, after = framed[:start], framed[start + len(alone) :]
        if all(
            [*before, *tokenizer.encode(probe, add_special_tokens=False).ids, *after] == tokenizer.encode(probe).ids
            for probe in _PROBES
        ):
            return before, after
    return None


def is_panic(error: BaseException) -> bool:
    """Whether `error` is a panic of a Rust library such as tokenizers.

    Its class derives from `BaseException` alone and cannot be imported.
    """
    return type(error).__name__ == "PanicException" and type(error).__module__ == "pyo3_runtime"


class TextError(DataError):
    """One of the texts given cannot be used."""

    def __init__(self, problem: str, *, number: int, given: object, expected: str, do: str) -> None:
        super().__init__(f"text {number} {problem}", given=given, expected=expected, do=do)
        self.number = number  # index of the text among those given, from 0


class TextTooLongError(TextError):
    """The text has more tokens than the model can read."""


class NoMaskError(TextError):
    """The text has no mask, or all its masks were cut off."""


class MaskCutOffError(TextError):
    """Some of the text's masks were cut off, so that the answer would silently miss them."""


class NotAPairError(TextError):
    """The input is a single text, and the model reads pairs."""


class NotUnicodeError(TextError):
    """The text has lone surrogates."""


class TargetError(DataError):
    """A target is not one token of the vocabulary."""


class NotANumberError(ArtifactError):
    """The graph gave NaN or infinity."""


def each_text(given: Sequence[Given]) -> list[str]:
    """Return all texts in a flat list, with both texts of a pair."""
    return [text for one in given for text in ((one,) if isinstance(one, str) else one)]


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """One text as the model reads it, including special tokens."""

    ids_L: npt.NDArray[np.int64]
    mask_spans: tuple[tuple[int, int], ...]  # start and end of each mask token in the text, in characters, in order
    types_L: npt.NDArray[np.int64] | None = None  # 0 in the first text of a pair, 1 in the second; None: all 0
    num_masks_cut_off: int = 0  # number of masks that truncation removed

    def __len__(self) -> int:
        return len(self.ids_L)


@dataclass(frozen=True, slots=True)
class Window:
    """Part of a text; a text that is longer than the model reads has several, which overlap."""

    number: int  # index of the text among those given, from 0
    place: int  # index of the window in its text, from 0
    read: TokenizedText
    encoding: Encoding  # encoding by the tokenizer, with the characters and the word of each token


@dataclass(frozen=True, slots=True)
class Piece:
    """One token of a text; an added special token has no characters."""

    __pydantic_config__ = ConfigDict(title="SimpleToken", json_schema_extra={"description": None})

    id: int
    text: str
    special: bool
    start: Annotated[int | None, Field(description="First character in the text; null for an added special token.")]
    stop: int | None


class TextTokenizer:
    """The tokenizer of a package. It is thread-safe."""

    def __init__(self, path: Path, *, max_length: int, mask_id: int | None, types_tell_pairs: bool = False) -> None:
        self._whole = Tokenizer.from_file(str(path))
        self._whole.no_padding()
        self._whole.no_truncation()
        self._cut = self._new_cutter(max_length, 0, False)
        # Returns a tokenizer that splits texts in this way. A few are cached, because clients use few settings.
        self._cutter = lru_cache(_MAX_CUTTERS)(self._new_cutter)
        self._known_words = KnownWords.of(self._whole)
        self._continuing: str = getattr(self._whole.model, "continuing_subword_prefix", None) or ""
        self.max_length = max_length  # number of tokens that the model reads, including special tokens
        self._mask_id = mask_id
        self._mask = re.compile(re.escape(self.mask_token or ""))
        self._types_tell_pairs = types_tell_pairs
        unknown: str | None = getattr(self._whole.model, "unk_token", None)
        # Id of the unknown token; None if the vocabulary has none.
        self.unknown_id: int | None = self._whole.token_to_id(unknown) if unknown else None

    @property
    def last_id(self) -> int:
        """Highest token id; -1 for an empty vocabulary."""
        return max(self._whole.get_vocab().values(), default=-1)

    @property
    def mask_token(self) -> str | None:
        token: str | None = None if self._mask_id is None else self._whole.id_to_token(self._mask_id)
        return token

    @property
    def continues_words(self) -> bool:
        """Whether the vocabulary marks tokens that continue a word, such as `##ing`."""
        return bool(self._continuing)

    def tokenize(self, texts: Sequence[Given], *, truncate: bool) -> list[TokenizedText]:
        """Tokenize each text or pair; a text that is too long for the model is cut at its end if `truncate` is set.

        Raises:
            TextError: a text is too long or not valid Unicode; the message gives its index, from 0.
        """
        _check_unicode(texts)
        read = self._read(texts)
        for number in [number for number, whole in enumerate(read) if len(whole) > self.max_length]:
            if not truncate:
                shown = " ".join(each_text([texts[number]]))[:60]
                raise TextTooLongError(
                    "is too long for the model",
                    number=number,
                    given=f"{self._lengths(texts[number], read[number])}: {shown!r}…",
                    expected=f"at most {self.max_length:,} tokens, including special tokens",
                    do="split the text, or set `truncate` to cut off its end",
                )
            (encoding,) = self._cut.encode_batch([texts[number]])
            cut = self._tokenized(encoding)
            num_cut_off = len(read[number].mask_spans) - len(cut.mask_spans)
            read[number] = replace(cut, num_masks_cut_off=num_cut_off)
        return read

    def windows(self, texts: Sequence[Given], *, longest: int, overlap: int) -> list[Window]:
        """Split each text into windows of at most `longest` tokens, of which neighbours share `overlap` tokens.

        Only the second text of a pair is split; every window contains the first.

        Raises:
            TextError: a text is not valid Unicode.
        """
        _check_unicode(texts)
        pairs = any(isinstance(text, tuple) for text in texts)
        encodings: list[Encoding] = self._cutter(longest, overlap, pairs).encode_batch(list(texts))
        return [
            Window(number, place, self._tokenized(part), part)
            for number, whole in enumerate(encodings)
            for place, part in enumerate((whole, *whole.overflowing))
        ]

    def first_tokens(self, text: str, num_tokens: int) -> tuple[str, int]:
        """Return the part of `text` that its first `num_tokens` tokens cover, and the number of tokens in it."""
        encoding = self._whole.encode(text, add_special_tokens=False)
        if len(encoding) <= num_tokens:
            return text, len(encoding)
        return text[: encoding.offsets[num_tokens - 1][1]], num_tokens

    def num_added(self, *, pairs: bool) -> int:
        """Return the number of special tokens around a text or a pair of texts."""
        return int(self._whole.num_special_tokens_to_add(pairs))

    def joined(self, tokens: Sequence[str]) -> str:
        """Join tokens to readable text."""
        decoder = self._whole.decoder
        return " ".join(tokens) if decoder is None else str(decoder.decode(list(tokens)))

    def _new_cutter(self, longest: int, overlap: int, pairs: bool) -> Tokenizer:
        cutter = Tokenizer.from_str(self._whole.to_str())
        cutter.enable_truncation(longest, stride=overlap, strategy="only_second" if pairs else "longest_first")
        return cutter

    def count(self, texts: Sequence[str]) -> list[int]:
        """Count the tokens of each whole text, including special tokens."""
        return [len(encoding.ids) for encoding in self._encode(texts)]

    def pieces(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[Piece]]:
        """Split each whole text, of any length, into its tokens.

        Raises:
            TextError: a text is not valid Unicode.
        """
        encodings = self._encode(texts, add_special_tokens)
        return [list(_pieces(text, encoding)) for text, encoding in zip(texts, encodings, strict=True)]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return the text of token ids."""
        return str(self._whole.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def ids_of(self, text: str) -> list[int]:
        """Return the id of `text` if it is a token, otherwise the ids of its pieces, without special tokens."""
        known: int | None = self._whole.token_to_id(text)
        return list(self._whole.encode(text, add_special_tokens=False).ids) if known is None else [known]

    def token_text(self, token_id: int) -> str:
        """Return the readable text of a token; `##ing` stays, because it marks the continuation of a word."""
        return self.decode([token_id], skip_special_tokens=False)

    def with_token(self, text: str, span: tuple[int, int], token: str) -> str:
        """Return `text` with the characters of `span` replaced by a token, which may continue the word before it."""
        start, end = span
        if self._continuing and token.startswith(self._continuing) and token != self._continuing:
            return text[:start].rstrip() + token.removeprefix(self._continuing) + text[end:]
        return text[:start] + token + text[end:]

    def _encode(self, texts: Sequence[Given], add_special_tokens: bool = True) -> list[Encoding]:
        _check_unicode(texts)
        return list(self._whole.encode_batch(list(texts), add_special_tokens=add_special_tokens))

    def _lengths(self, given: Given, read: TokenizedText) -> str:
        """Describe the number of tokens, for a pair also of each text, because only one of them may be too long."""
        if isinstance(given, str):
            return f"{len(read):,} tokens"
        first, second = (len(self._whole.encode(text, add_special_tokens=False)) for text in given)
        return f"{len(read):,} tokens (the two texts have {first:,} and {second:,})"

    def _read(self, texts: Sequence[Given]) -> list[TokenizedText]:
        """Tokenize whole texts: from cached words where possible, the others together in one call."""
        found = [self._from_words(text) for text in texts]
        rest = [text for text, tokens in zip(texts, found, strict=True) if tokens is None]
        encoded = map(self._tokenized, self._whole.encode_batch(rest)) if rest else iter(())
        return [next(encoded) if tokens is None else tokens for tokens in found]

    def _from_words(self, text: Given) -> TokenizedText | None:
        """Return the tokens of `text` from cached words; None if the tokenizer has to encode it."""
        if self._known_words is None or not isinstance(text, str):
            return None
        ids = self._known_words.ids(text)
        if ids is None:
            return None
        num_masks = ids.count(self._mask_id) if self._mask_id is not None else 0
        spans = tuple(mask.span() for mask in self._mask.finditer(text)) if num_masks else ()
        # A mask in another spelling, such as capitals, is not found by the pattern.
        return TokenizedText(np.array(ids, dtype=np.int64), spans) if len(spans) == num_masks else None

    def _tokenized(self, encoding: Encoding) -> TokenizedText:
        ids: list[int] = encoding.ids
        offsets = encoding.offsets if self._mask_id in ids else []
        spans = tuple(span for span, token_id in zip(offsets, ids, strict=False) if token_id == self._mask_id)
        tells = self._types_tell_pairs and encoding.n_sequences > 1
        types_L = np.array(encoding.type_ids, dtype=np.int64) if tells else None
        return TokenizedText(np.array(ids, dtype=np.int64), spans, types_L)


def _pieces(text: str, encoding: Encoding) -> Iterator[Piece]:
    for token_id, token, (start, stop), special in zip(
        encoding.ids, encoding.tokens, encoding.offsets, encoding.special_tokens_mask, strict=True
    ):
        if special:
            yield Piece(token_id, token, True, None, None)
        else:
            yield Piece(token_id, text[start:stop], False, start, stop)


def _check_unicode(texts: Sequence[Given]) -> None:
    for number, given in enumerate(texts):
        for text in each_text([given]):
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise NotUnicodeError(
                    "is not valid Unicode",
                    number=number,
                    given=ascii(text[error.start : error.end]),
                    expected="text without lone surrogates (U+D800 to U+DFFF)",
                    do="decode the original bytes with the right encoding",
                ) from error
