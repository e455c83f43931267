"""Record formats of the kinds of task: one function for each class of params.

This module loads no torch, because a run checks the data of every task before its first stage.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import singledispatch
from pathlib import Path

from clozeline.params import FinetuneParams
from clozeline.params.finetuning import LabelledParams, QuestionAnsweringParams, SimilarityParams, TaggingParams
from clozeline.records.files.fields import Fields
from clozeline.tasks.classification import label_files, labelled
from clozeline.tasks.question_answering.squad import read_squad
from clozeline.tasks.records import Reader, Record
from clozeline.tasks.similarity import tables
from clozeline.tasks.sources import Part, first_records, records_of
from clozeline.tasks.tagging import columns


@dataclass(frozen=True)
class RecordFormat:
    """Fields and file formats that a kind of task reads."""

    fields: Fields
    """Knob of the task → name of the field; every record must have these fields."""
    readers: Mapping[str, Reader] = field(default_factory=dict)
    """Readers of other formats than tables, keyed by file suffix."""


def task_records(params: FinetuneParams, data: Path) -> Iterator[tuple[Part, Record]]:
    """Yield each record with its split; raises as `records_of`."""
    form = record_format(params)
    return records_of(params, data, form.fields, form.readers)


def require_readable(params: FinetuneParams, data: Path) -> None:
    """Read the first record of every file that the task names. Hub datasets are not checked.

    Raises:
        DataError: a file is missing, of an unknown format, or its first record cannot be read.
    """
    if params.hub is None:
        form = record_format(params)
        first_records(params, data, form.fields, form.readers)


@singledispatch
def record_format(params: FinetuneParams) -> RecordFormat:
    """Return the format of the task's kind; tables with any fields where the kind registers none."""
    return RecordFormat({})


@record_format.register
def _of_labels(params: LabelledParams) -> RecordFormat:
    return RecordFormat(labelled.fields_of(params), label_files.readers(params.label_files))


@record_format.register
def _of_questions(params: QuestionAnsweringParams) -> RecordFormat:
    fields = {name: getattr(params, name) for name in ("question_field", "context_field", "answers_field")}
    return RecordFormat(fields, {".json": read_squad})


@record_format.register
def _of_tags(params: TaggingParams) -> RecordFormat:
    fields = {"tokens_field": params.tokens_field, "tags_field": params.tags_field}
    return RecordFormat(fields, columns.readers(params.token_column, params.tag_column))


@record_format.register
def _of_pairs(params: SimilarityParams) -> RecordFormat:
    knobs = ("docstring_field", "title_field") if params.docstring_field else ("first_field", "second_field")
    named = {knob: getattr(params, knob) for knob in (*knobs, "score_field")}
    fields = {knob: name for knob, name in named.items() if name is not None}
    return RecordFormat(fields, tables.readers(params.columns))
