"""Documents from records of structured files: JSON objects, rows of CSV and Parquet, examples of the hub."""

from collections.abc import Generator, Iterable
from dataclasses import dataclass

from clozeline.errors import DataError
from clozeline.records.files.bad import OnBad, stop
from clozeline.records.files.fields import Fields
from clozeline.records.files.json_values import whole
from clozeline.records.files.placed import PlacedRecord
from clozeline.text.documents import Document

_TEXT_KNOB = "source.text_field"
_LABEL_KNOB = "source.label_field"


@dataclass(frozen=True)
class TextFields:
    """Fields of the text and of its label. Without a label field the label is the file's name."""

    text: str
    label: str | None

    @property
    def by_knob(self) -> Fields:
        label = {} if self.label is None else {_LABEL_KNOB: self.label}
        return {_TEXT_KNOB: self.text} | label


def documents_of(
    rows: Iterable[PlacedRecord], fields: TextFields, file_label: str, on_bad: OnBad = stop
) -> Generator[Document, None, None]:
    """Yield a document for each row. A null text or label counts as empty.

    Raises:
        DataError: a text is not a string, unless `on_bad` takes the error.
    """
    text_field, label_field = fields.text, fields.label
    for place, record in rows:
        text = record[text_field]
        if text is not None and not isinstance(text, str):
            on_bad(_not_text(place, text_field, text))
            continue
        label = file_label if label_field is None else record[label_field]
        yield Document(text or "", "" if label is None else whole(str(label)))


def _not_text(place: str, text_field: str, text: object) -> DataError:
    return DataError(
        f"{place}: field `{text_field}` is not text",
        given=f"{type(text).__name__}: {str(text)[:80]}",
        expected="a string, or null for a record without text",
        do=f"set `{_TEXT_KNOB}` to the field that holds the text",
    )
