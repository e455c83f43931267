"""What no stage makes is looked for before anything runs, and told with the key that names it."""

import re
import shutil
from pathlib import Path

import pytest

from clozeline.errors import DataError
from clozeline.params import read_params
from flows.inputs import require_inputs, unlabelled_tasks
from flows.pipeline import pipeline
from flows.stage_graph import read_stage_graph

CHECKOUT = Path(__file__).parents[2]
DATA = "data/clean/holdout.parquet"


@pytest.fixture
def project(toy: Path) -> Path:
    """The toy's folder with this project's own stages; nothing has run."""
    for name in ("dvc.yaml", "requirements.lock"):
        shutil.copy(CHECKOUT / name, toy / name)
    shutil.copytree(CHECKOUT / "src", toy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    return toy


def set_param(root: Path, old: str, new: str) -> None:
    file = root / "params.yaml"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new, 1))


def check(root: Path, *done: str) -> None:
    require_inputs(root, read_stage_graph(root), done)


def test_a_fresh_project_lacks_nothing(project: Path) -> None:
    check(project)


@pytest.mark.parametrize(
    ("key", "old", "path", "stage"),
    [
        ("preprocess.source.path", "path: requirements.lock", "my-texts", "preprocess"),
        ("finetune.library.data", f"data: {DATA}", "labels/mine.parquet", "finetune@library"),
        ("finetune.library.data", f"data: {DATA}", "/nowhere/mine.parquet", "finetune@library"),
    ],
)
def test_a_missing_source_is_named_with_its_key(project: Path, key: str, old: str, path: str, stage: str) -> None:
    set_param(project, old, f"{old.partition(':')[0]}: {path}")
    with pytest.raises(DataError, match=re.escape(f"{path} does not exist, and stage `{stage}`")) as caught:
        check(project)
    assert caught.value.given == f"{key}: {path} in params.yaml"
    assert f"correct {key}" in caught.value.do
    assert "dvc pull" in caught.value.do


def test_what_a_stage_should_have_made_is_missed_as_soon_as_it_is_done(project: Path) -> None:
    set_param(project, DATA, "data/clean/labels.parquet")
    check(project)
    (project / "data/clean").mkdir(parents=True)
    for name in ("train", "validation", "holdout"):
        (project / f"data/clean/{name}.parquet").touch()
    with pytest.raises(DataError, match=r"data/clean/labels\.parquet does not exist"):
        check(project, "preprocess")


def test_text_without_labels_is_noticed() -> None:
    params = read_params(CHECKOUT / "params.yaml")
    assert unlabelled_tasks(params) == []
    source = params.preprocess.source.model_copy(update={"kind": "files"})
    own = params.model_copy(update={"preprocess": params.preprocess.model_copy(update={"source": source})})
    assert unlabelled_tasks(own) == ["library"]
    assert unlabelled_tasks(own.model_copy(update={"finetune": {}})) == []
    labelled = source.model_copy(update={"label_field": "topic"})
    preprocess = params.preprocess.model_copy(update={"source": labelled})
    assert unlabelled_tasks(own.model_copy(update={"preprocess": preprocess})) == []


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_server")
def test_a_missing_source_stops_the_flow_before_any_stage(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    set_param(project, "kind: python-docs", "kind: files")
    set_param(project, "path: requirements.lock", "path: my-texts")
    with pytest.raises(DataError, match="my-texts does not exist"):
        pipeline(project)
    assert "finetune.library learns which file a text is from" in caplog.text
    assert not (project / "data").exists()
    assert not (project / "work/mlflow").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_server")
def test_a_flow_ends_when_a_stage_did_not_make_what_another_one_reads(toy: Path) -> None:
    dvc_yaml = (toy / "dvc.yaml").read_text().replace("outs: [upper.txt]", "outs: [made]")
    dvc_yaml = dvc_yaml.replace("raw.txt upper.txt", "raw.txt made/upper.txt")
    (toy / "dvc.yaml").write_text(dvc_yaml.replace("deps: [upper.txt]", "deps: [made/lower.txt]"))
    with pytest.raises(DataError, match=r"made/lower\.txt does not exist, and stage `count`"):
        pipeline(toy)
    assert (toy / "made/upper.txt").exists()
