"""A run without one of its inputs ends at once, not after hours of work."""

from pathlib import Path

import pytest

from clozeline.flows.pipeline import pipeline
from clozeline.system.errors import DataError, ParamsError, StorageError
from tests.make.projects import with_own_stages
from tests.orchestration.test_inputs import set_param

pytestmark = pytest.mark.usefixtures("prefect_server")


def test_a_missing_source_stops_the_flow_before_any_stage(toy: Path, caplog: pytest.LogCaptureFixture) -> None:
    project = with_own_stages(toy)
    set_param(project, "kind: python-docs", "kind: files")
    set_param(project, "path: corpus.lock", "path: my-texts")
    with pytest.raises(DataError, match="my-texts does not exist"):
        pipeline(project)
    assert "finetune.library learns which file a text is from" in caplog.text
    assert not (project / "data/raw").exists()
    assert not (project / "work/mlflow").exists()


def test_labels_in_an_unknown_format_stop_the_flow_before_any_stage(toy: Path) -> None:
    project = with_own_stages(toy)
    (project / "mine.xlsx").write_bytes(b"PK")
    splits = "{train: train.parquet, validation: validation.parquet, test: holdout.parquet}"
    set_param(project, f"data: data/clean\n    splits: {splits}\n    label", "data: mine.xlsx\n    label")
    with pytest.raises(DataError, match=r"mine\.xlsx has a format that cannot be read"):
        pipeline(project)
    assert not (project / "data/raw").exists()
    assert not (project / "work/mlflow").exists()


def test_a_start_that_dvc_would_delete_stops_the_flow_and_keeps_its_files(toy: Path) -> None:
    project = with_own_stages(toy)
    (project / "models/encoder").mkdir(parents=True)
    (project / "models/encoder/config.json").write_text("{}")
    set_param(project, "start: null", "start: models/encoder")
    with pytest.raises(ParamsError, match=r"`pretrain\.start` is an output of this project"):
        pipeline(project)
    assert (project / "models/encoder/config.json").exists()
    assert not (project / "work/mlflow").exists()


def test_a_cache_that_cannot_be_written_stops_the_flow_before_any_stage(toy: Path) -> None:
    (toy / ".dvc/cache").write_text("a file, in which nobody can make a folder")
    with pytest.raises(StorageError, match="cache is not writable"):
        pipeline(toy)
    assert not (toy / "upper.txt").exists()
    assert not (toy / "work/mlflow").exists()


def test_a_flow_fails_if_a_stage_did_not_make_the_input_of_another(toy: Path) -> None:
    dvc_yaml = (toy / "dvc.yaml").read_text().replace("outs: [upper.txt]", "outs: [made]")
    dvc_yaml = dvc_yaml.replace("raw.txt upper.txt", "raw.txt made/upper.txt")
    (toy / "dvc.yaml").write_text(dvc_yaml.replace("deps: [upper.txt]", "deps: [made/lower.txt]"))
    with pytest.raises(DataError, match=r"made/lower\.txt does not exist, and stage `count`"):
        pipeline(toy)
    assert (toy / "made/upper.txt").exists()
