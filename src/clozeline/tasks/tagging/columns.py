"""Files in columns, as the CoNLL tasks have them: a word and its columns in a line, an empty line after a sentence."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from clozeline.errors import DataError
from clozeline.records.fields import Fields
from clozeline.records.streams import lines_of
from clozeline.tasks.records import Reader, Record
from clozeline.tasks.tagging.schemes import is_tag

SUFFIXES = (".conll", ".iob", ".iob2", ".bio", ".txt", ".tsv")
_DOCUMENT = "-DOCSTART-"


def readers(token_column: int, tag_column: int) -> Mapping[str, Reader]:
    """Readers of columns, by the file's suffix."""

    def read(path: Path, fields: Fields) -> Iterator[Record]:
        return _read(path, fields, token_column, tag_column)

    return dict.fromkeys(SUFFIXES, read)


def _read(path: Path, fields: Fields, token_column: int, tag_column: int) -> Iterator[Record]:
    words: list[str] = []
    tags: list[str] = []
    first_line = 1
    for number, line in enumerate(lines_of(path), start=1):
        columns = _columns(line)
        if not columns or columns[0] == _DOCUMENT:
            if words:
                yield _record(path, first_line, fields, words, tags)
            words, tags, first_line = [], [], number + 1
        elif not _is_comment(line, columns, bool(words)):
            _check(path, number, line, columns, token_column, tag_column)
            words.append(columns[token_column])
            tags.append(columns[tag_column])
    if words:
        yield _record(path, first_line, fields, words, tags)


def _columns(line: str) -> list[str]:
    """Between TABs, else between spaces. A line of white space alone ends a sentence as an empty one does."""
    line = line.strip("\r\n")
    if not line.strip():
        return []
    return [column.strip() for column in line.split("\t")] if "\t" in line else line.split()


def _is_comment(line: str, columns: list[str], in_sentence: bool) -> bool:
    """`# id 4` before a sentence; the word `#` with its tag is none."""
    return not in_sentence and line.startswith("#") and not is_tag(columns[-1])


def _check(path: Path, number: int, line: str, columns: list[str], token_column: int, tag_column: int) -> None:
    needed = max(place + 1 if place >= 0 else -place for place in (token_column, tag_column))
    place = f"{path}, line {number}"
    if len(columns) < max(needed, 2):
        raise DataError(
            f"{place}: too few columns",
            given=repr(line.strip("\r\n"))[:80],
            expected=f"{max(needed, 2)} or more, between TABs or spaces; an empty line between sentences",
            do="mend the line, or correct `token_column` and `tag_column` of this task in params.yaml",
        )
    if not columns[token_column]:
        raise DataError(
            f"{place}: there is a tag without a word",
            given=repr(line.strip("\r\n"))[:80],
            expected="a word, then its tag",
            do="remove the line, or write the word",
        )
    if not is_tag(columns[tag_column]):
        raise DataError(
            f"{place}: not a tag",
            given=columns[tag_column][:80] or "nothing",
            expected="O, or a type behind B-, I-, E-, S-, L- or U-",
            do="mend the line, or correct `tag_column` of this task in params.yaml",
        )


def _record(path: Path, line: int, fields: Fields, words: list[str], tags: list[str]) -> Record:
    return Record({fields["tokens_field"]: words, fields["tags_field"]: tags}, f"{path}, line {line}")
