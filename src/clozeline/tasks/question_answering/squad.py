"""Reader of SQuAD files (Rajpurkar et al. 2016, 2018): articles of paragraphs, each a context with its questions."""

from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

from clozeline.errors import DataError
from clozeline.records.files.fields import Fields, nearest
from clozeline.records.files.json_values import parsed
from clozeline.records.files.streams import lines_of
from clozeline.tasks.records import Record

_SHAPE = (
    '{"data": [{"paragraphs": [{"context": "…", "qas": '
    '[{"question": "…", "answers": [{"text": "…", "answer_start": 0}]}]}]}]}'
)
_KEYS = (
    "data",
    "paragraphs",
    "context",
    "qas",
    "question",
    "answers",
    "text",
    "answer_start",
    "id",
    "title",
    "version",
)
_KINDS = MappingProxyType({list: "a list", str: "a string", int: "a whole number"})


def read_squad(path: Path, fields: Fields) -> Iterator[Record]:
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
                yield Record(dict(zip(names, values, strict=True)), at)


def _document(path: Path) -> Any:
    try:
        return parsed("".join(lines_of(path)))
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
    raise DataError(
        f'{where}: expected "{name}": {_KINDS[kind]}, as in {_SHAPE}',
        given=_given(value, name),
        do=_remedy_for_key(value, name),
    )


def _given(value: Any, name: str) -> str:
    if not isinstance(value, dict):
        return f"{type(value).__name__}: {str(value)[:80]}"
    if name in value:
        return f'"{name}": {str(value[name])[:80]}'
    return f"keys: {', '.join(value) or 'none'}"


def _remedy_for_key(value: Any, name: str) -> str:
    free = [key for key in value if key not in _KEYS] if isinstance(value, dict) and name not in value else []
    near = nearest(name, free)
    return f'rename "{near}" to "{name}" in the file' if near else "correct the file at this place"
