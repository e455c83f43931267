"""Fields that a snapshot keeps of each record."""

from clozeline.params import SourceParams
from clozeline.records.files.fields import Fields


def text_fields(params: SourceParams) -> Fields:
    """Return the knobs of text and label with the fields that they name."""
    label = {} if params.label_field is None else {"source.label_field": params.label_field}
    return {"source.text_field": params.text_field} | label
