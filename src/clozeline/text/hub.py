"""A dataset of the Hugging Face hub, or a local folder of the same layout, as a source."""

from clozeline.params import SourceParams
from clozeline.records.hub import HubKnobs, HubSplit, hub_records
from clozeline.text.documents import Source
from clozeline.text.from_records import TextFields, documents_of

_SPLIT = "train"
_KNOBS = HubKnobs(
    dataset="`source.dataset`",
    revision="`source.revision`",
    every="`source.dataset`, `source.subset` and `source.revision`",
)


def open_hub(params: SourceParams) -> Source:
    """Stream the `train` split of a dataset; the other splits stay unread, because others test on them.

    Raises:
        DataError: the dataset, the configuration or the split does not exist.
        TransientError: the hub did not answer; also raised while reading.
    """
    assert params.dataset is not None
    label = params.dataset
    fields = TextFields(params.text_field, params.label_field)
    rows = hub_records(HubSplit(label, params.subset, _SPLIT, params.revision, _KNOBS), fields.by_knob)
    return Source(units=documents_of(rows, fields, label), total_bytes=0)
