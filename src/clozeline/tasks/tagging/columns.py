"""Files in CoNLL columns: a word and its columns on each line, and an empty line after each sentence."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from clozeline.errors import DataError
from clozeline.records.files.fields import Fields
from clozeline.records.files.streams import lines_of
from clozeline.tasks.records import Reader, Record
from clozeline.tasks.tagging.schemes import is_tag

SUFFIXES = (".conll", ".iob", ".iob2", ".bio", ".txt", ".tsv")
_DOCUMENT = "-DOCSTART-"


def readers(token_column: int, tag_column: int) -> Mapping[str, Reader]:
    """Return the readers of column files, keyed by file suffix."""

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
    """Return the columns, split at TABs or else at spaces; none for a line of white space, which ends a sentence."""
    line = line.strip("\r\n")
    if not line.strip():
        return []
    return [column.strip() for column in line.split("\t")] if "\t" in line else line.split()


def _is_comment(line: str, columns: list[str], in_sentence: bool) -> bool:
    """Return whether the line is a comment before a sentence, such as `# id 4`; the word `#` with a tag is not."""
    return not in_sentence and line.startswith("#") and not is_tag(columns[-1])


def _check(path: Path, number: int, line: str, columns: list[str], token_column: int, tag_column: int) -> None:
    needed = max(place + 1 if place >= 0 else -place for place in (token_column, tag_column))
    place, told = f"{path}, line {number}", repr(line.strip("\r\n"))[:80]
    if len(columns) < max(needed, 2):
        raise DataError(
            f"{place}: fewer than {max(needed, 2)} columns, by tabs or spaces: {told}",
            do="correct the line (an empty one between sentences), or `token_column` and `tag_column` of this task",
        )
    if not columns[token_column]:
        raise DataError(f"{place}: a tag without a word: {told}", do="remove the line, or add the word")
    if not is_tag(columns[tag_column]):
        raise DataError(
            f"{place}: {columns[tag_column][:80] or 'nothing'} is not O, or a type after B-, I-, E-, S-, L- or U-",
            do="correct the line, or `tag_column` of this task",
        )


def _record(path: Path, line: int, fields: Fields, words: list[str], tags: list[str]) -> Record:
    return Record({fields["tokens_field"]: words, fields["tags_field"]: tags}, f"{path}, line {line}")
