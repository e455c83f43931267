"""Snapshot of a dataset of the Hugging Face hub, or of a local folder of the same layout."""

from dataclasses import replace

from clozeline.artifacts.snapshot.manifest import SnapshotFile
from clozeline.params import SourceParams
from clozeline.records.hub import HubKnobs, HubSplit, commit_of, hub_records
from clozeline.snapshots.record_shards import keep_records, line_of, text_fields
from clozeline.snapshots.store import Store

_SPLIT = "train"
_KNOBS = HubKnobs(
    dataset="`source.dataset`",
    every="`source.dataset`, `source.subset` and `source.revision`",
)


def keep_dataset(params: SourceParams, store: Store) -> tuple[tuple[SnapshotFile, ...], str | None]:
    """Keep text and label of the `train` split; other splits stay unread, because others test on them.

    Returns:
        The shards, and the commit that was read; None for a local folder.

    Raises:
        DataError: the dataset, the configuration, the split or a field does not exist.
        TransientError: the hub did not answer.
    """
    assert params.dataset is not None
    asked = HubSplit(params.dataset, params.subset, _SPLIT, params.revision, _KNOBS)
    commit = commit_of(asked)
    fields = text_fields(params)
    rows = hub_records(replace(asked, revision=commit or params.revision), fields)
    lines = (line_of({field: row[field] for field in fields.values()}) for _, row in rows)
    return keep_records(lines, store), commit
