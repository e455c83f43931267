"""A record of a structured file (JSON object, CSV row, Parquet row, hub example) as a document."""

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from clozeline.errors import DataError
from clozeline.text.documents import Document


@dataclass(frozen=True)
class Fields:
    """Where the text and its label are; without a label field the label is the file's name."""

    text: str
    label: str | None


def check_fields(present: Collection[str], fields: Fields, place: str) -> None:
    """Raise a DataError when a field that is wanted is not among those present."""
    for key, name in (("text_field", fields.text), ("label_field", fields.label)):
        if name is None or name in present:
            continue
        near = difflib.get_close_matches(name, present, n=1)
        raise DataError(
            f"{place}: there is no field `{name}`",
            given=f"fields: {', '.join(present) or 'none'}",
            expected=f"a field `{name}` (preprocess.source.{key})",
            do=f"set preprocess.source.{key} to {near[0] if near else 'one of these fields'} in params.yaml",
        )


def document_of(record: Mapping[str, object], fields: Fields, file_label: str, place: str) -> Document:
    """Make a document of a record; a text or a label that is null is empty.

    Raises:
        DataError: a field is missing, or the text is not a string.
    """
    if fields.text not in record or (fields.label is not None and fields.label not in record):
        check_fields(record.keys(), fields, place)
    text = record[fields.text]
    if text is not None and not isinstance(text, str):
        raise DataError(
            f"{place}: field `{fields.text}` is not text",
            given=f"{type(text).__name__}: {str(text)[:80]}",
            expected="a string, or null for a record without text",
            do="set preprocess.source.text_field to the field that holds the text",
        )
    label = file_label if fields.label is None else record[fields.label]
    return Document(text or "", "" if label is None else str(label))
