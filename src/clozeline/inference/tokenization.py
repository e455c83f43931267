"""Texts to token ids, with the tokenizer of the package; padding is left to batching."""

import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding, Tokenizer

from clozeline.inference.errors import NotUnicodeError, TextTooLongError
from clozeline.inference.known_words import KnownWords

Given = str | tuple[str, str]
"""One text, or two that are read together."""
_MAX_CUTTERS = 4


def each_text(given: Sequence[Given]) -> list[str]:
    """Every text, one by one: of those that are read together both."""
    return [text for one in given for text in ((one,) if isinstance(one, str) else one)]


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """One text as the model reads it, special tokens included."""

    ids_L: npt.NDArray[np.int64]
    mask_spans: tuple[tuple[int, int], ...]
    """Of each mask token, in order: where it starts and ends in the text, in characters."""
    types_L: npt.NDArray[np.int64] | None = None
    """0 in the first text of a pair, 1 in the second; None: all 0."""
    num_masks_cut_off: int = 0
    """Masks behind the end that the text was cut to."""

    def __len__(self) -> int:
        return len(self.ids_L)


@dataclass(frozen=True, slots=True)
class Window:
    """Part of a text that may be longer than the model reads: the text has several, which overlap."""

    number: int
    """Of the text among those given, from 0."""
    place: int
    """Of the window in its text, from 0."""
    read: TokenizedText
    encoding: Encoding
    """With the characters and the word of each token, as the tokenizer tells them."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One token of a text; a special token that was added stands for no characters."""

    id: int
    text: str
    special: bool
    start: int | None
    """In the text, in characters."""
    stop: int | None


class TextTokenizer:
    """The tokenizer of a package. Safe to call from many threads."""

    def __init__(self, path: Path, *, max_length: int, mask_id: int | None, types_tell_pairs: bool = False) -> None:
        self._whole = Tokenizer.from_file(str(path))
        self._whole.no_padding()
        self._whole.no_truncation()
        self._cut = Tokenizer.from_file(str(path))
        self._cut.no_padding()
        self._cut.enable_truncation(max_length)
        self._cutters: OrderedDict[tuple[int, int, bool], Tokenizer] = OrderedDict()
        self._cutters_lock = Lock()
        self._known_words = KnownWords.of(self._whole)
        self._continuing: str = getattr(self._whole.model, "continuing_subword_prefix", None) or ""
        self._max_length = max_length
        self._mask_id = mask_id
        self._mask = re.compile(re.escape((mask_id is not None and self._whole.id_to_token(mask_id)) or ""))
        self._types_tell_pairs = types_tell_pairs
        unknown: str | None = getattr(self._whole.model, "unk_token", None)
        self.unknown_id: int | None = self._whole.token_to_id(unknown) if unknown else None
        """Of the token that stands for what the vocabulary does not have; None: there is none."""

    @property
    def max_length(self) -> int:
        """Tokens that the model reads, special tokens among them."""
        return self._max_length

    @property
    def continues_words(self) -> bool:
        """Whether a token shows that it continues a word, as `##ing` does."""
        return bool(self._continuing)

    def tokenize(self, texts: Sequence[Given], *, truncate: bool) -> list[TokenizedText]:
        """Tokenize each text or pair; one longer than the model reads is cut at its end if `truncate`.

        Raises:
            TextError: naming the text (counted from 0) that is too long, or is no valid Unicode.
        """
        for number, text in enumerate(texts):
            _check_unicode(number, text)
        read = self._read(texts)
        for number in [number for number, whole in enumerate(read) if len(whole) > self._max_length]:
            if not truncate:
                raise TextTooLongError(
                    "is too long for the model",
                    number=number,
                    given=f"{self._lengths(texts[number], read[number])}: {' '.join(_parts(texts[number]))[:60]!r}…",
                    expected=f"at most {self._max_length:,} tokens, special tokens among them",
                    do="split the text, or ask for truncation (its end is then not read)",
                )
            (encoding,) = self._cut.encode_batch([texts[number]])
            cut = self._tokenized(encoding)
            num_cut_off = len(read[number].mask_spans) - len(cut.mask_spans)
            read[number] = replace(cut, num_masks_cut_off=num_cut_off)
        return read

    def windows(self, texts: Sequence[Given], *, longest: int, overlap: int) -> list[Window]:
        """Each text in parts of at most `longest` tokens, of which each begins with the last `overlap` tokens of the
        one before; of a pair the second text is parted, and the first is in every part.

        Raises:
            TextError: a text is no valid Unicode.
        """
        for number, text in enumerate(texts):
            _check_unicode(number, text)
        pairs = any(isinstance(text, tuple) for text in texts)
        encodings: list[Encoding] = self._cutter(longest, overlap, pairs).encode_batch(list(texts))
        return [
            Window(number, place, self._tokenized(part), part)
            for number, whole in enumerate(encodings)
            for place, part in enumerate((whole, *whole.overflowing))
        ]

    def first_tokens(self, text: str, num_tokens: int) -> tuple[str, int]:
        """The characters of `text` that its first so many tokens stand for, and how many tokens those are."""
        encoding = self._whole.encode(text, add_special_tokens=False)
        if len(encoding) <= num_tokens:
            return text, len(encoding)
        return text[: encoding.offsets[num_tokens - 1][1]], num_tokens

    def num_added(self, *, pairs: bool) -> int:
        """Special tokens around a text, or around two."""
        number: int = self._whole.num_special_tokens_to_add(pairs)
        return number

    def joined(self, tokens: Sequence[str]) -> str:
        """Tokens as a person reads them together."""
        decoder = self._whole.decoder
        text: str = decoder.decode(list(tokens)) if decoder is not None else " ".join(tokens)
        return text

    def _cutter(self, longest: int, overlap: int, pairs: bool) -> Tokenizer:
        """A tokenizer that parts texts so. A few are kept: clients ask for few kinds of parts, if for any."""
        key = (longest, overlap, pairs)
        with self._cutters_lock:
            cutter = self._cutters.pop(key, None) or self._new_cutter(*key)
            self._cutters[key] = cutter
            while len(self._cutters) > _MAX_CUTTERS:
                self._cutters.popitem(last=False)
        return cutter

    def _new_cutter(self, longest: int, overlap: int, pairs: bool) -> Tokenizer:
        cutter = Tokenizer.from_str(self._whole.to_str())
        cutter.enable_truncation(longest, stride=overlap, strategy="only_second" if pairs else "longest_first")
        return cutter

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each whole text, special tokens among them."""
        return [len(encoding.ids) for encoding in self._encode(texts)]

    def pieces(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[Piece]]:
        """Each whole text taken apart, however long it is.

        Raises:
            TextError: a text is no valid Unicode.
        """
        encodings = self._encode(texts, add_special_tokens)
        return [list(_pieces(text, encoding)) for text, encoding in zip(texts, encodings, strict=True)]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text that token ids stand for."""
        decoded: str = self._whole.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return decoded

    def ids_of(self, text: str) -> list[int]:
        """Ids of `text` alone: the one id if it is a token of the vocabulary, else its pieces, no special tokens."""
        known = self._whole.token_to_id(text)
        ids: list[int] = [known] if known is not None else self._whole.encode(text, add_special_tokens=False).ids
        return ids

    def token_text(self, token_id: int) -> str:
        """The token as a person reads it (`##ing` stays as it is: it continues a word)."""
        decoded: str = self._whole.decode([token_id], skip_special_tokens=False)
        return decoded

    def with_token(self, text: str, span: tuple[int, int], token: str) -> str:
        """`text` with the characters of `span` replaced by a token, which may continue the word before it."""
        start, end = span
        if self._continuing and token.startswith(self._continuing) and token != self._continuing:
            return text[:start].rstrip() + token.removeprefix(self._continuing) + text[end:]
        return text[:start] + token + text[end:]

    def _encode(self, texts: Sequence[Given], add_special_tokens: bool = True) -> list[Encoding]:
        for number, text in enumerate(texts):
            _check_unicode(number, text)
        encodings: list[Encoding] = self._whole.encode_batch(list(texts), add_special_tokens=add_special_tokens)
        return encodings

    def _lengths(self, given: Given, read: TokenizedText) -> str:
        """Of a pair, each text's too: only one of them may be what is too long."""
        if isinstance(given, str):
            return f"{len(read):,} tokens"
        first, second = (len(self._whole.encode(text, add_special_tokens=False)) for text in given)
        return f"{len(read):,} tokens (the two texts have {first:,} and {second:,})"

    def _read(self, texts: Sequence[Given]) -> list[TokenizedText]:
        """Each whole text: from words that are known, and those of which they are not all at once."""
        found = [self._from_words(text) for text in texts]
        rest = [text for text, tokens in zip(texts, found, strict=True) if tokens is None]
        encoded = map(self._tokenized, self._whole.encode_batch(rest)) if rest else iter(())
        return [next(encoded) if tokens is None else tokens for tokens in found]

    def _from_words(self, text: Given) -> TokenizedText | None:
        """None: `text` has to be encoded."""
        if self._known_words is None or not isinstance(text, str):
            return None
        ids = self._known_words.ids(text)
        if ids is None:
            return None
        num_masks = ids.count(self._mask_id) if self._mask_id is not None else 0
        spans = tuple(mask.span() for mask in self._mask.finditer(text)) if num_masks else ()
        # One that is written in another way, as in capitals, is not found so.
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


def _parts(given: Given) -> tuple[str, ...]:
    return given if isinstance(given, tuple) else (given,)


def _check_unicode(number: int, given: Given) -> None:
    try:
        for text in _parts(given):
            text.encode()
    except UnicodeEncodeError as error:
        raise NotUnicodeError(
            "is not valid Unicode",
            number=number,
            given=ascii(text[error.start : error.end]),
            expected="text without lone surrogates (U+D800 to U+DFFF)",
            do="decode the bytes it came from with the right encoding",
        ) from error
