"""A record of a classification task: one text or two, and the labels."""

from dataclasses import dataclass, field
from typing import Self

from clozeline.params import LabelledParams
from clozeline.records.files.fields import Fields
from clozeline.tasks.records import Record
from clozeline.tasks.sources import Part


@dataclass(frozen=True, slots=True)
class Labelled:
    """One record; a missing text is empty."""

    texts: tuple[str, ...]
    labels: tuple[str, ...] | None
    """None if the record has no label; empty if no label of a multi-label task applies."""
    given: Part = "train"
    place: str = field(default="", compare=False)
    """Location of the record."""

    @classmethod
    def of(cls, record: Record, given: Part, params: LabelledParams) -> Self:
        """Return the labelled texts of a record.

        Raises:
            DataError: a field has the wrong type; names file and line.
        """
        fields = [params.text_field, *([params.second_field] if params.second_field else [])]
        read = _several if params.multi_label else _one
        return cls(tuple(record.text(field) for field in fields), read(record, params), given, record.place)


def fields_of(params: LabelledParams) -> Fields:
    named = {"text_field": params.text_field, "label_field": params.label_field}
    return named if params.second_field is None else {**named, "second_field": params.second_field}


def _one(record: Record, params: LabelledParams) -> tuple[str, ...] | None:
    label = record.category(params.label_field).strip()
    return (label,) if label else None


def _several(record: Record, params: LabelledParams) -> tuple[str, ...] | None:
    """Return the labels from a list of strings, or from a string split at `label_separator`."""
    value = record.values[params.label_field]
    if value is None:
        return None
    is_text = isinstance(value, str)
    labels = value.split(params.label_separator) if is_text else record.strings(params.label_field)
    return tuple(label.strip() for label in labels if label.strip())
