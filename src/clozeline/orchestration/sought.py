"""A text that is searched for in files of any kind."""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, Self

import pyarrow as pa
import pyarrow.parquet as pq

from clozeline.artifacts.snapshot.forgotten import MIN_WORDS, Forgotten, words_of
from clozeline.errors import DataError
from clozeline.records.files.meter import Meter
from clozeline.records.files.streams import decompressed
from clozeline.text.cleaning import clean, split_long

_PARQUET: Final = b"PAR1"
_BLOCK_BYTES: Final = 1 << 22
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|[nrtbf])")


@dataclass(frozen=True)
class Sought:
    """The text, as it was given, as stage `preprocess` cleans it, and the parts that it cuts a long text into."""

    text: str
    forms: Forgotten
    """Tombstones of its forms, with a key of their own."""

    @classmethod
    def of(cls, text: str, max_characters: int) -> Self:
        forms = Forgotten(key=b"search")
        cleaned = [clean(text, decode_entities=decodes) for decodes in (True, False)]
        for form in (text, *cleaned, *(part for one in cleaned for part in split_long(one, max_characters))):
            if len(words_of(form)) >= MIN_WORDS:
                forms = forms.with_text(form)
        return cls(text, forms)

    def is_in(self, path: Path) -> bool:
        """Whether the whole text is in a file, by itself or inside a longer one."""
        return any(self.forms.cut(part) != part for part in _parts(path, self.forms))

    def is_quoted_in(self, path: Path) -> bool:
        """Whether any `MIN_WORDS` words in a row of the text are in a file."""
        return any(map(self.is_quoted_by, _parts(path, self.forms)))

    def is_quoted_by(self, text: str) -> bool:
        """Whether any `MIN_WORDS` words in a row of the text are in another one."""
        return not self._runs.isdisjoint(_runs_of(text))

    @cached_property
    def _runs(self) -> frozenset[tuple[str, ...]]:
        return frozenset(_runs_of(self.text))


def _runs_of(text: str) -> Iterator[tuple[str, ...]]:
    words = words_of(text)
    return (tuple(words[place : place + MIN_WORDS]) for place in range(len(words) - MIN_WORDS + 1))


def _parts(path: Path, forms: Forgotten) -> Iterator[str]:
    """Yield the text of a file in parts that overlap; nothing if it is not text."""
    try:
        with path.open("rb") as file:
            is_parquet = file.read(len(_PARQUET)) == _PARQUET
        yield from _cells(path) if is_parquet else _blocks(path, forms)
    except (DataError, pa.ArrowInvalid):  # damaged, or only similar to one of the formats
        return


def _cells(path: Path) -> Iterator[str]:
    with pq.ParquetFile(path) as table:
        for batch in table.iter_batches(1_000, use_threads=False):
            for column in batch.columns:
                yield from (value if isinstance(value, str) else str(value) for value in column.to_pylist() if value)


def _blocks(path: Path, forms: Forgotten) -> Iterator[str]:
    rest = ""
    with decompressed(path, Meter()) as stream:
        while block := stream.read(_BLOCK_BYTES):
            block += stream.readline()
            if 0 in block[:4096]:
                return
            text = block.decode("utf-8", errors="replace")
            for form in dict.fromkeys((text, _ESCAPE.sub(_unescaped, text), html.unescape(text))):
                yield rest + form
            rest = text[forms.start_of_rest(text) :]


def _unescaped(escape: re.Match[str]) -> str:
    return chr(int(escape[1], 16)) if escape[1] else " "
