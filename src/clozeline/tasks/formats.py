"""Record formats of the kinds of task: one row for each class of params, and the readers of their file formats.

Texts may be labelled by their location: for each label there is a file with one text per line, as Pang & Lee's
sentences are published (`rt-polarity.pos`), or a folder with one text per file, as IMDB's reviews are (`pos/0_9.txt`).
A SQuAD file (Rajpurkar et al. 2016, 2018) has articles of paragraphs, each a context with its questions. Scored pairs
of the STS tasks come in tab-separated files without a header. A file in CoNLL columns has a word and its columns on
each line, and an empty line after each sentence.

This module loads no torch, because a run checks the data of every task before its first stage.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from clozeline.params import tasks
from clozeline.records.reading import files, streams
from clozeline.system.errors import DataError
from clozeline.tasks.selection import (
    FOLDER,
    TABLES,
    LabelledRecord,
    Part,
    Reader,
    files_named,
    part_of,
    read_records,
    records_of,
)
from clozeline.tasks.tagging.data import OUTSIDE, is_tag, type_of, words_and_tags

LabelFiles = Mapping[str, str]
_PLAIN = ".txt"
_MOST_NAMED = 5
_SHAPE = (
    '{"data": [{"paragraphs": [{"context": "…", "qas": '
    '[{"question": "…", "answers": [{"text": "…", "answer_start": 0}]}]}]}]}'
)
_KEYS = (
    *("data", "paragraphs", "context", "qas", "question", "answers"),
    *("text", "answer_start", "id", "title", "version"),
)
_KINDS = MappingProxyType({list: "a list", str: "a string", int: "a whole number"})
_SUFFIXES = (".tsv", ".txt")
SUFFIXES = (".conll", ".iob", ".iob2", ".bio", ".txt", ".tsv")
_DOCUMENT = "-DOCSTART-"


def label_readers(label_files: LabelFiles | None) -> Mapping[str, Reader]:
    """Return the readers of labelled texts in addition to the tables, keyed by file suffix.

    Args:
        label_files: label → file or folder inside the folder that is read; None: each subfolder is a label.
    """
    read_folder = partial(_read_folder, label_files=label_files)
    if label_files is None:
        return {_PLAIN: _read_plain, FOLDER: read_folder}
    return {**dict.fromkeys((_PLAIN, *TABLES), _refuse_file), FOLDER: read_folder}


def _read_plain(path: Path, fields: files.Fields) -> Iterator[LabelledRecord]:
    """Read JSON Lines, which SciCite publishes under this suffix."""
    for number, line in enumerate(streams.lines_of(path), start=1):
        if line.lstrip().startswith("{"):
            break
        if line.strip():
            raise DataError(
                f"{path}, line {number}: a text without a label, and no JSON Lines: {line.strip()[:80]}",
                do=f"set `data` of this task to its folder, and `label_files: {{LABEL: {path.name}, …}}`",
            )
    return TABLES[".jsonl"](path, fields)


def _refuse_file(path: Path, fields: files.Fields) -> Iterator[LabelledRecord]:
    raise DataError(
        f"{path} is a file, but `label_files` needs a folder with a file or a folder for each label",
        do="set `data` (or `splits`) of this task to the folder, or set `label_files: null`",
    )


def _read_folder(path: Path, fields: files.Fields, *, label_files: LabelFiles | None) -> Iterator[LabelledRecord]:
    text_field, label_field = fields["text_field"], fields["label_field"]
    files.check_fields((text_field, label_field), fields, path)
    places = _places(path, label_files)
    for label, place in places.items():
        _check_label(place, label)
    for label, place in places.items():
        num_texts = 0
        for text, where in _texts_in(place):
            num_texts += 1
            yield LabelledRecord({text_field: text, label_field: label}, where)
        if num_texts == 0:
            raise DataError(
                f"{place} holds no text of the label `{label}`",
                do="add texts, or list only the other labels in `label_files` of this task",
            )


def _places(path: Path, label_files: LabelFiles | None) -> dict[str, Path]:
    """Return the file or folder of each label."""
    if label_files is not None:
        return {label: path / name for label, name in label_files.items()}
    there = sorted(inner for inner in path.iterdir() if not _is_hidden(inner, path))
    folders = {inner.name: inner for inner in there if inner.is_dir()}
    if not folders:
        raise DataError(
            f"{path}: neither folders, `label_files` nor `splits` tell the labels",
            given=", ".join(inner.name for inner in there[:_MOST_NAMED]) or "an empty folder",
            do="set `label_files: {LABEL: FILE, …}` or `splits: {train: FILE, test: FILE}` of this task",
        )
    return folders


def _texts_in(place: Path) -> Iterator[tuple[str, str]]:
    """Yield each text with its location."""
    if place.is_dir():
        for file in sorted(inner for inner in place.rglob("*") if inner.is_file() and not _is_hidden(inner, place)):
            yield "".join(streams.lines_of(file)), str(file)
        return
    for number, line in enumerate(streams.lines_of(place), start=1):
        if line.strip():
            yield line.strip(), f"{place}, line {number}"


def _check_label(place: Path, label: str) -> None:
    """Check the file or folder of a label. The caller checks every label before it reads texts."""
    if not place.is_dir() and not (place.is_file() and files.format_of(place) not in TABLES):
        raise DataError(
            f"`label_files: {{{label}: {place.name}}}` names {'a table' if place.is_file() else 'no file'}: {place}",
            do="name a file of lines or a folder of texts; for a table, set `data: FILE` and `label_files: null`",
        )


def _is_hidden(inner: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in inner.relative_to(folder).parts)


def texts_in(record: LabelledRecord, params: tasks.LabelledParams) -> tuple[str, ...]:
    """Return the text of a record, or both texts; a missing text is empty."""
    fields = (params.text_field, params.second_field)
    return tuple(record.text(field) for field in fields if field is not None)


def labels_in(record: LabelledRecord, params: tasks.LabelledParams) -> tuple[str, ...] | None:
    """Return the labels of a record; None if it has none, empty if no label of a multi-label task applies.

    Several labels are a list of strings, or a string that is split at `label_separator`.
    """
    if not params.multi_label:
        label = record.category(params.label_field).strip()
        return (label,) if label else None
    value = record.values[params.label_field]
    if value is None:
        return None
    is_text = isinstance(value, str)
    labels = value.split(params.label_separator) if is_text else record.strings(params.label_field)
    return tuple(label.strip() for label in labels if label.strip())


def read_squad(path: Path, fields: files.Fields) -> Iterator[LabelledRecord]:
    """Yield one record for each question of a file of version 1.1 or 2.0.

    Raises:
        DataError: the file is not JSON, or has the wrong shape; names the location.
    """
    for article_place, article in enumerate(_member(_document(path), "data", list, f"{path}")):
        where = f"{path}, data[{article_place}]"
        for paragraph_place, paragraph in enumerate(_member(article, "paragraphs", list, where)):
            inner = f"{where}.paragraphs[{paragraph_place}]"
            context = _member(paragraph, "context", str, inner)
            for place, question in enumerate(_member(paragraph, "qas", list, inner)):
                at = f"{inner}.qas[{place}]"
                answers = _answers(question, at)
                values = (_member(question, "question", str, at), context, answers)
                names = (fields["question_field"], fields["context_field"], fields["answers_field"])
                yield LabelledRecord(dict(zip(names, values, strict=True)), at)


def _document(path: Path) -> Any:
    try:
        return streams.parsed("".join(streams.lines_of(path)))
    except ValueError as error:
        raise DataError(
            f"{path} is not JSON, as in {_SHAPE}: {error}",
            do="correct it, or rename it to .jsonl if each line is a record",
        ) from error


def _answers(question: Any, at: str) -> dict[str, list[Any]]:
    """Return the answers in the format of hub datasets; none for a question marked impossible."""
    if isinstance(question, dict) and question.get("is_impossible"):
        return {"text": [], "answer_start": []}
    answers = _member(question, "answers", list, at)
    return {
        "text": [_member(answer, "text", str, f"{at}.answers") for answer in answers],
        "answer_start": [_member(answer, "answer_start", int, f"{at}.answers") for answer in answers],
    }


def _member(value: Any, name: str, kind: type, where: str) -> Any:
    member = value.get(name) if isinstance(value, dict) else None
    if isinstance(member, kind):
        return member
    near = None
    if not isinstance(value, dict):
        given = f"{type(value).__name__}: {str(value)[:80]}"
    elif name in value:
        given = f'"{name}": {str(value[name])[:80]}'
    else:
        given = f"keys: {', '.join(value) or 'none'}"
        near = files.nearest(name, [key for key in value if key not in _KEYS])
    raise DataError(
        f'{where}: expected "{name}": {_KINDS[kind]}, as in {_SHAPE}',
        given=given,
        do=f'rename "{near}" to "{name}" in the file' if near else "correct the file at this place",
    )


def pair_readers(columns: Sequence[str] | None) -> Mapping[str, Reader]:
    """Return the readers keyed by file suffix; none without `columns`, because tables then have headers."""
    return {} if columns is None else dict.fromkeys(_SUFFIXES, partial(_read_pairs, columns=columns))


def _read_pairs(path: Path, fields: files.Fields, *, columns: Sequence[str]) -> Iterator[LabelledRecord]:
    """Read the named columns and ignore further ones. Quotes are text, because STS files contain unpaired quotes."""
    files.check_fields(columns, fields, "`columns` of this task")
    for number, line in enumerate(streams.lines_of(path), start=1):
        if not line.strip():
            continue
        values = line.rstrip("\r\n").split("\t")
        if len(values) < len(columns):
            raise DataError(
                f"{path}, line {number}: {len(values)} columns by tabs, not {', '.join(columns)}: {line.strip()[:80]}",
                do="correct the line, or correct `columns` of this task",
            )
        yield LabelledRecord(dict(zip(columns, map(str.strip, values), strict=False)), f"{path}, line {number}")


def tag_readers(token_column: int, tag_column: int) -> Mapping[str, Reader]:
    """Return the readers of column files, keyed by file suffix."""
    return dict.fromkeys(SUFFIXES, partial(_read_tags, token_column=token_column, tag_column=tag_column))


def _read_tags(path: Path, fields: files.Fields, *, token_column: int, tag_column: int) -> Iterator[LabelledRecord]:
    words: list[str] = []
    tags: list[str] = []
    first_line = 1
    for number, line in enumerate(streams.lines_of(path), start=1):
        columns = _columns(line)
        if not columns or columns[0] == _DOCUMENT:
            if words:
                yield _record(path, first_line, fields, words, tags)
            words, tags, first_line = [], [], number + 1
        elif words or not line.startswith("#") or is_tag(columns[-1]):  # else a comment before a sentence: `# id 4`
            _check_columns(path, number, line, columns, token_column, tag_column)
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


def _check_columns(path: Path, number: int, line: str, columns: list[str], token_column: int, tag_column: int) -> None:
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


def _record(path: Path, line: int, fields: files.Fields, words: list[str], tags: list[str]) -> LabelledRecord:
    return LabelledRecord({fields["tokens_field"]: words, fields["tags_field"]: tags}, f"{path}, line {line}")


@dataclass(frozen=True, slots=True)
class LabelledItem:
    """A labelled text, sentence or question."""

    identity: str  # the same for copies, which have to have the same labels
    labels: tuple[str, ...]
    classes: tuple[str, ...]  # distinct classes that it is counted in
    part: Part


def _with_labels(record: LabelledRecord, given: Part, params: tasks.LabelledParams) -> LabelledItem | None:
    texts, found = texts_in(record, params), labels_in(record, params)
    if found is None or not all(texts):
        return None
    identity = streams.identity_of(*(text.strip() for text in texts))
    labels = tuple(sorted(set(found)))
    return LabelledItem(identity, labels, labels, part_of(identity, given, params))


def _with_tags(record: LabelledRecord, given: Part, params: tasks.TaggingParams) -> LabelledItem | None:
    words, tags = words_and_tags(record, params)
    if not words:
        return None
    identity = streams.identity_of(" ".join(words))
    types = {type_of(tag) for tag in tags} - {OUTSIDE}
    return LabelledItem(identity, tags, tuple(sorted(types or {OUTSIDE})), part_of(identity, given, params))


def _with_answers(record: LabelledRecord, given: Part, params: tasks.QuestionAnsweringParams) -> LabelledItem | None:
    from clozeline.tasks.question_answering.data import answer_counts, question_of  # loads torch

    question = question_of(record, given, params, answer_counts())
    if isinstance(question, tuple):
        return None
    answers = tuple(sorted(set(question.texts)))
    kind = "answerable" if question.is_answerable else "unanswerable"
    return LabelledItem(streams.identity_of(question.question, question.context), answers, (kind,), question.part)


class RecordFormat(NamedTuple):
    """What a kind of task reads."""

    fields: files.Fields  # fields that every record must have, by the knob of the task that names them
    readers: Mapping[str, Reader]  # readers of other formats than tables, by file suffix
    # Returns the item of a record in the given split, for the contract of the data; None without text or label. The
    # function is None for pairs of texts: copies of a scored pair may differ, and a matching pair has no label.
    labelled: Callable[[LabelledRecord, Part], LabelledItem | None] | None


def task_records(params: tasks.FinetuneParams, data: Path) -> Iterator[tuple[Part, LabelledRecord]]:
    """Yield each record with its split; raises as `records_of`."""
    reads = record_format(params)
    return records_of(params, data, reads.fields, reads.readers)


def require_readable(params: tasks.FinetuneParams, data: Path) -> None:
    """Read the first record of every file that the task names. Hub datasets are not checked.

    Raises:
        DataError: a file is missing, of an unknown format, or its first record cannot be read.
    """
    if params.hub is None:
        for path in files_named(params, data):
            reads = record_format(params)
            next(read_records(path, reads.fields, reads.readers), None)


def record_format(params: tasks.FinetuneParams) -> RecordFormat:
    """Return what the kind of task reads."""
    knobs: tuple[str, ...] = ()
    readers: Mapping[str, Reader] = {}
    labelled: Callable[..., LabelledItem | None] | None = None
    match params:
        case tasks.LabelledParams():
            knobs, labelled = ("text_field", "label_field", "second_field"), _with_labels
            readers = label_readers(params.label_files)
        case tasks.QuestionAnsweringParams():
            knobs, labelled = ("question_field", "context_field", "answers_field"), _with_answers
            readers = {".json": read_squad}
        case tasks.TaggingParams():
            knobs, labelled = ("tokens_field", "tags_field"), _with_tags
            readers = tag_readers(params.token_column, params.tag_column)
        case tasks.SimilarityParams():
            of_texts = ("docstring_field", "title_field") if params.docstring_field else ("first_field", "second_field")
            knobs, readers = (*of_texts, "score_field"), pair_readers(params.columns)
    fields = {knob: name for knob in knobs if (name := getattr(params, knob)) is not None}
    return RecordFormat(fields, readers, labelled and partial(labelled, params=params))
