"""Claim: records come from one file, from a file for each part, or from a dataset in the hub's own shape."""

from pathlib import Path

import pytest

from clozeline.params.reading import read_params
from clozeline.params.tasks import FinetuneParams, HubParams, SplitsParams
from clozeline.system.errors import DataError
from clozeline.tasks import files
from clozeline.tasks.files import at_commit, hub_commit, records_of

PARAMS = read_params(Path(__file__).parents[2] / "params.yaml").finetune["library"].model_copy(update={"splits": None})
FIELDS = {"text_field": "body", "label_field": "topic"}


def read(data: Path, **changes: object) -> list[tuple[str, str, str]]:
    """Return split, text and label of each record."""
    params: FinetuneParams = PARAMS.model_copy(update=changes)
    records = records_of(params, data, FIELDS)
    return [(part, record.text("body"), record.category("topic")) for part, record in records]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.csv").write_text("body,topic\none,x\n")
    (tmp_path / "b.jsonl").write_text('{"body": "two", "topic": "y"}\n')
    return tmp_path


def test_all_records_of_a_single_file_are_training_records(folder: Path) -> None:
    assert read(folder / "a.csv") == [("train", "one", "x")]


def test_each_file_becomes_the_split_that_the_params_name(folder: Path) -> None:
    splits = SplitsParams(train="a.csv", test="b.jsonl")
    assert read(folder, splits=splits) == [("train", "one", "x"), ("test", "two", "y")]


def test_a_missing_split_file_is_named(folder: Path) -> None:
    with pytest.raises(DataError, match=r"there is no file .*c\.csv"):
        read(folder, splits=SplitsParams(train="a.csv", test="c.csv"))
    with pytest.raises(DataError, match="is not a folder, but `splits`"):
        read(folder / "a.csv", splits=SplitsParams(train="a.csv"))


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> HubParams:
    """A dataset as the hub stores it: Parquet files by split, whose features name the class ids."""
    import datasets

    folder = tmp_path_factory.mktemp("hub")
    features = datasets.Features({"body": datasets.Value("string"), "topic": datasets.ClassLabel(names=["no", "yes"])})
    for split, labels in {"train": [0, 1], "validation": [1, -1]}.items():
        rows = {"body": [f"{split} {label}" for label in labels], "topic": labels}
        datasets.Dataset.from_dict(rows, features=features).to_parquet(folder / f"{split}-00000-of-00001.parquet")
    return HubParams(dataset=str(folder))


def test_a_hub_dataset_gives_the_names_of_its_classes(hub: HubParams, tmp_path: Path) -> None:
    told = read(tmp_path, hub=hub, splits=SplitsParams(train="train", test="validation"))
    assert told[:2] == [("train", "train 0", "no"), ("train", "train 1", "yes")]
    assert told[2:] == [("test", "validation 1", "yes"), ("test", "validation -1", "")]


def test_without_configured_splits_only_the_training_split_of_the_hub_is_read(hub: HubParams, tmp_path: Path) -> None:
    assert {part for part, *_ in read(tmp_path, hub=hub)} == {"train"}


def test_a_hub_dataset_is_read_at_its_first_resolved_commit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(files, "commit_of", lambda split: None if Path(split.dataset).exists() else "0a" * 20)
    on_hub = PARAMS.model_copy(update={"hub": HubParams(dataset="someone/something")})
    pinned = at_commit(on_hub, hub_commit(on_hub))
    assert pinned.hub == HubParams(dataset="someone/something", revision="0a" * 20)
    assert caplog.messages == [
        "someone/something: the dataset may change: set `hub.revision` of this task to pin a commit"
    ]
    assert hub_commit(pinned) == "0a" * 20
    assert len(caplog.messages) == 1


def test_a_folder_and_files_have_no_commit(hub: HubParams) -> None:
    for params in (PARAMS, PARAMS.model_copy(update={"hub": hub})):
        assert at_commit(params, hub_commit(params)) is params


def test_a_split_or_field_missing_from_a_hub_dataset_is_named(hub: HubParams, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot read split trian"):
        read(tmp_path, hub=hub, splits=SplitsParams(train="trian"))
    with pytest.raises(DataError, match="no field `nowhere`"):
        list(records_of(PARAMS.model_copy(update={"hub": hub}), tmp_path, {"text_field": "body", "x": "nowhere"}))
