"""bad_records.jsonl beside the clean text: place and reason of each record that was set aside."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TextIO

from clozeline.text.documents import BadRecord

BAD_RECORDS: Final = "bad_records.jsonl"


class BadRecordWriter:
    """Writes a line for each bad record. Without any, there is no file."""

    def __init__(self, path: Path, named: Callable[[str], str]) -> None:
        """`named` turns the place of a record in the snapshot into its place in the source."""
        self._path = path
        self._named = named
        self._stream: TextIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream is not None:
            self._stream.close()

    def append(self, records: Iterable[BadRecord]) -> None:
        for record in records:
            if self._stream is None:
                self._stream = self._path.open("w", encoding="utf-8")
            told = {"place": self._named(record.place), "reason": record.reason}
            self._stream.write(json.dumps(told, ensure_ascii=False) + "\n")
