"""A record of a structured file (JSON object, CSV row, Parquet row, hub example) as a document."""

from collections.abc import Mapping
from dataclasses import dataclass

from clozeline.errors import DataError
from clozeline.records.fields import Fields
from clozeline.text.documents import Document

_TEXT_KNOB = "preprocess.source.text_field"
_LABEL_KNOB = "preprocess.source.label_field"


@dataclass(frozen=True)
class TextFields:
    """Where the text and its label are; without a label field the label is the file's name."""

    text: str
    label: str | None

    @property
    def by_knob(self) -> Fields:
        label = {} if self.label is None else {_LABEL_KNOB: self.label}
        return {_TEXT_KNOB: self.text} | label


def document_of(record: Mapping[str, object], fields: TextFields, file_label: str, place: str) -> Document:
    """Make a document of a record, which has the fields; a text or a label that is null is empty.

    Raises:
        DataError: the text is not a string.
    """
    text = record[fields.text]
    if text is not None and not isinstance(text, str):
        raise DataError(
            f"{place}: field `{fields.text}` is not text",
            given=f"{type(text).__name__}: {str(text)[:80]}",
            expected="a string, or null for a record without text",
            do=f"set {_TEXT_KNOB} to the field that holds the text",
        )
    label = file_label if fields.label is None else record[fields.label]
    return Document(text or "", "" if label is None else str(label))
