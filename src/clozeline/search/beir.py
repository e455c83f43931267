"""Retrieval data in BEIR's layout (Thakur et al. 2021): corpus.jsonl, queries.jsonl, and the judgements in qrels/."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from clozeline.errors import DataError
from clozeline.records.files.formats import read_json_lines
from clozeline.records.files.meter import Meter
from clozeline.records.files.streams import lines_of

_ID, _TITLE, _TEXT = "_id", "title", "text"
_NUM_COLUMNS = 3


@dataclass(frozen=True)
class JudgedQueries:
    """Documents, and queries with the relevance of some of the documents."""

    document_ids: list[str]
    documents: list[str]
    """Title and text of each document."""
    query_ids: list[str]
    queries: list[str]
    gains: list[dict[int, int]]
    """For each query: place of a document → its relevance, above 0."""

    @classmethod
    def open(cls, folder: Path, split: str = "test") -> Self:
        """Read the documents and the queries that have a relevant document in qrels/<split>.tsv.

        Raises:
            DataError: a file is missing or cannot be read, or no query has a relevant document.
        """
        corpus, queries, judgements = _files(folder, split)
        documents = {str(row[_ID]): _whole(row) for _, row in _records(corpus)}
        place_of = {identity: place for place, identity in enumerate(documents)}
        texts = {str(row[_ID]): str(row[_TEXT]) for _, row in _records(queries)}
        gains: dict[str, dict[int, int]] = {}
        for query, document, relevance in _judgements(judgements):
            if relevance > 0 and document in place_of and query in texts:
                gains.setdefault(query, {})[place_of[document]] = relevance
        if not gains:
            raise DataError(
                f"{folder}: no query has a relevant document",
                given=f"{len(texts):,} queries, {len(documents):,} documents",
                expected=f"in {judgements.name}, ids of {queries.name} and {corpus.name} with a score above 0",
                do="check that the three files are of the same data set",
            )
        return cls([*documents], [*documents.values()], [*gains], [texts[query] for query in gains], [*gains.values()])


def _files(folder: Path, split: str) -> list[Path]:
    """Return the three files, each plain or compressed."""
    names = ("corpus.jsonl", "queries.jsonl", f"qrels/{split}.tsv")
    found = [next(iter(sorted(folder.glob(f"{name}*"))), None) for name in names]
    if missing := [name for name, path in zip(names, found, strict=True) if path is None]:
        raise DataError(
            f"{folder} is no retrieval data in BEIR's layout",
            given=f"no {', no '.join(missing)}",
            expected=", ".join(names),
            do="name a folder as BEIR's archives have it (for example scifact)",
        )
    return [path for path in found if path is not None]


def _records(path: Path) -> Iterator[tuple[str, dict[str, object]]]:
    return read_json_lines(path, {"the id": _ID, "the text": _TEXT}, Meter())


def _whole(row: dict[str, object]) -> str:
    return f"{row.get(_TITLE) or ''} {row[_TEXT]}".strip()


def _judgements(path: Path) -> Iterator[tuple[str, str, int]]:
    """Yield query, document and relevance of each line after the header."""
    for number, line in enumerate(lines_of(path), start=1):
        cells = line.rstrip("\r\n").split("\t")
        if number == 1 or not line.strip():
            continue
        if len(cells) != _NUM_COLUMNS or not cells[-1].strip().lstrip("-").isdecimal():
            raise DataError(
                f"{path}, line {number}: not a judgement",
                given=line.strip()[:80],
                expected="query-id, corpus-id and a whole number, separated by tabs",
                do="correct the line",
            )
        yield cells[0], cells[1], int(cells[2])
