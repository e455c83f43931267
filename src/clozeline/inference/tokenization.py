"""Texts to token ids, with the tokenizer of the package; padding is left to batching."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding, Tokenizer

from clozeline.inference.errors import NotUnicodeError, TextTooLongError


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """One text as the model reads it, special tokens included."""

    ids_L: npt.NDArray[np.int64]
    mask_spans: tuple[tuple[int, int], ...]
    """Of each mask token, in order: where it starts and ends in the text, in characters."""

    def __len__(self) -> int:
        return len(self.ids_L)


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
    """The tokenizer of a package. Safe to call from many threads: nothing changes after construction."""

    def __init__(self, path: Path, *, max_length: int, mask_id: int | None) -> None:
        self._whole = Tokenizer.from_file(str(path))
        self._whole.no_padding()
        self._whole.no_truncation()
        self._cut = Tokenizer.from_file(str(path))
        self._cut.no_padding()
        self._cut.enable_truncation(max_length)
        self._continuing: str = getattr(self._whole.model, "continuing_subword_prefix", None) or ""
        self._max_length = max_length
        self._mask_id = mask_id
        unknown: str | None = getattr(self._whole.model, "unk_token", None)
        self.unknown_id: int | None = self._whole.token_to_id(unknown) if unknown else None
        """Of the token that stands for what the vocabulary does not have; None: there is none."""

    def tokenize(self, texts: Sequence[str], *, truncate: bool) -> list[TokenizedText]:
        """Tokenize each text; one longer than the model reads is cut at its end if `truncate`.

        Raises:
            TextError: naming the text (counted from 0) that is too long, or is no valid Unicode.
        """
        encodings = self._encode(texts)
        for number, encoding in self._too_long(encodings):
            if not truncate:
                raise TextTooLongError(
                    "is too long for the model",
                    number=number,
                    given=f"{len(encoding.ids):,} tokens: {texts[number][:60]!r}…",
                    expected=f"at most {self._max_length:,} tokens, special tokens among them",
                    do="split the text, or ask for truncation (its end is then not read)",
                )
            encodings[number] = self._cut.encode(texts[number])
        return [self._tokenized(encoding) for encoding in encodings]

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

    def _encode(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[Encoding]:
        for number, text in enumerate(texts):
            _check_unicode(number, text)
        encodings: list[Encoding] = self._whole.encode_batch(list(texts), add_special_tokens=add_special_tokens)
        return encodings

    def _too_long(self, encodings: Sequence[Encoding]) -> Iterator[tuple[int, Encoding]]:
        return ((n, encoding) for n, encoding in enumerate(encodings) if len(encoding.ids) > self._max_length)

    def _tokenized(self, encoding: Encoding) -> TokenizedText:
        ids_L = np.array(encoding.ids, dtype=np.int64)
        offsets = encoding.offsets if self._mask_id is not None and (ids_L == self._mask_id).any() else []
        spans = tuple(span for span, token_id in zip(offsets, ids_L, strict=False) if token_id == self._mask_id)
        return TokenizedText(ids_L, spans)


def _pieces(text: str, encoding: Encoding) -> Iterator[Piece]:
    for token_id, token, (start, stop), special in zip(
        encoding.ids, encoding.tokens, encoding.offsets, encoding.special_tokens_mask, strict=True
    ):
        if special:
            yield Piece(token_id, token, True, None, None)
        else:
            yield Piece(token_id, text[start:stop], False, start, stop)


def _check_unicode(number: int, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise NotUnicodeError(
            "is not valid Unicode",
            number=number,
            given=ascii(text[error.start : error.end]),
            expected="text without lone surrogates (U+D800 to U+DFFF)",
            do="decode the bytes it came from with the right encoding",
        ) from error
