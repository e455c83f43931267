"""Claim: a split of a hub dataset gives the same rows as a file, and errors name the caller's settings."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest

from clozeline.records.reading.hub import HubSplit, commit_of, hub_records
from clozeline.system.errors import DataError, TransientError

FIELDS = {"room.text_field": "body", "room.label_field": "topic"}
KNOBS = "room.dataset and room.split"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dataset as the hub stores it: one Parquet file per split, whose features give the names of the labels."""
    folder = tmp_path_factory.mktemp("hub")
    topic = datasets.ClassLabel(names=["no", "yes"])
    body = datasets.Value("string")
    features = datasets.Features({"body": body, "topic": topic, "tags": datasets.Sequence(topic)})
    for split, labels in {"train": [0, 1], "validation": [1, -1]}.items():
        bodies = [f"{split} {label}" for label in labels]
        rows = {"body": bodies, "topic": labels, "tags": [[label, 1] for label in labels]}
        datasets.Dataset.from_dict(rows, features=features).to_parquet(folder / f"{split}-00000-of-00001.parquet")
    return folder


def split_of(dataset: Path | str, split: str = "train", subset: str | None = None) -> HubSplit:
    return HubSplit(str(dataset), subset, split, None, KNOBS)


def test_rows_come_in_order_with_their_places_and_class_names(folder: Path) -> None:
    """A hidden class is None; a list of classes has their names."""
    places, values = zip(*hub_records(split_of(folder), {**FIELDS, "room.tags_field": "tags"}), strict=True)
    assert places == (f"{folder}, train row 0", f"{folder}, train row 1")
    told = [(row["body"], row["topic"], row["tags"]) for row in values]
    assert told == [("train 0", "no", ["no", "yes"]), ("train 1", "yes", ["yes", "yes"])]
    hidden = hub_records(split_of(folder, "validation"), FIELDS)
    assert [row["topic"] for _, row in hidden] == ["yes", None]


def test_a_revision_is_resolved_to_its_commit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str | None, str | None]] = []

    class Builder:
        base_path: str | None = f"hf://datasets/someone/something@{'0a' * 20}/data"

    def builder_of(name: str, subset: str | None, *, revision: str | None) -> type[Builder]:
        asked.append((name, subset, revision))
        return Builder

    monkeypatch.setattr(datasets, "load_dataset_builder", builder_of)
    assert commit_of(HubSplit("someone/something", "x", "train", "main", KNOBS)) == "0a" * 20
    assert asked == [("someone/something", "x", "main")]
    # Without a network, only the source of the installed version can prove that its addresses still look like this.
    source = inspect.getsource(datasets.load.HubDatasetModuleFactory)
    assert 'f"hf://datasets/{self.name}@{self.commit_hash}/' in source
    Builder.base_path = None
    assert commit_of(split_of("someone/something")) is None
    assert commit_of(split_of(folder)) is None, "a folder has none"


def test_what_is_missing_is_named_with_its_knob_and_a_subset_or_split_before_any_row_is_read(folder: Path) -> None:
    with pytest.raises(DataError, match="train row 0: no field `topics`") as caught:
        list(hub_records(split_of(folder), {"room.label_field": "topics"}))
    assert caught.value.do == "set `room.label_field` to topic"
    for split in (split_of(folder, "trian"), split_of(folder, subset="nope")):
        with pytest.raises(DataError, match="cannot read split") as caught:
            hub_records(split, FIELDS)
        assert split.split in str(caught.value)
        assert (split.subset or "") in str(caught.value)
        assert caught.value.do == f"correct {KNOBS}"


def unreachable(*_: object, **__: object) -> Any:
    raise ConnectionError("no route")


class Breaking:
    features = None

    def __iter__(self) -> Iterator[dict[str, str]]:
        yield {"body": "a", "topic": "x"}
        unreachable()


def test_a_hub_that_does_not_answer_or_stops_midway_is_a_transient_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(TransientError, match="the hub did not answer") as caught:
        hub_records(split_of("someone/something"), FIELDS)
    assert "room.dataset" in caught.value.do
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: Breaking())
    rows = hub_records(split_of("someone/something"), FIELDS)
    assert next(rows) == ("someone/something, train row 0", {"body": "a", "topic": "x"})
    with pytest.raises(TransientError, match="the hub did not answer"):
        next(rows)
