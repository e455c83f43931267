"""Inputs that no stage makes are checked before anything runs; the error names their key of params.yaml."""

import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from clozeline.orchestration.checks import require_inputs, require_readable_labels, unlabelled_tasks
from clozeline.params.reading import read_params
from clozeline.system.errors import DataError
from clozeline.versions.graph import read_stage_graph
from tests.make.projects import with_own_stages

CHECKOUT = Path(__file__).parents[2]
DATA = "classification\n    data: data/clean"


@pytest.fixture
def project(toy: Path) -> Path:
    return with_own_stages(toy)


def set_param(root: Path, old: str, new: str) -> None:
    file = root / "params.yaml"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new, 1))


def check(root: Path, *done: str) -> None:
    require_inputs(root, read_stage_graph(root), done)


def test_a_fresh_project_passes_the_check(project: Path) -> None:
    check(project)


@pytest.mark.parametrize(
    ("key", "old", "path", "stage"),
    [
        ("preprocess.source.path", "path: corpus.lock", "my-texts", "snapshot"),
        ("finetune.library.data", DATA, "labels/mine.parquet", "finetune@library"),
        ("finetune.library.data", DATA, "/nowhere/mine.parquet", "finetune@library"),
    ],
)
def test_a_missing_source_is_named_with_its_key(project: Path, key: str, old: str, path: str, stage: str) -> None:
    set_param(project, old, f"{old.rpartition(': ')[0]}: {path}")
    with pytest.raises(DataError, match=re.escape(f"{path} does not exist, and stage `{stage}`")) as caught:
        check(project)
    assert caught.value.given == f"{key}: {path} in params.yaml"
    assert f"correct {key}" in caught.value.do
    assert "dvc pull" in caught.value.do


def test_a_missing_output_is_reported_as_soon_as_its_stage_ends(project: Path) -> None:
    set_param(project, DATA, f"{DATA}/labels.parquet")
    check(project)
    (project / "data/clean").mkdir(parents=True)
    for name in ("train", "validation", "holdout"):
        (project / f"data/clean/{name}.parquet").touch()
    with pytest.raises(DataError, match=r"data/clean/labels\.parquet does not exist"):
        check(project, "preprocess")


def with_task(root: Path, **task: object) -> None:
    """Rewrite the project's params.yaml with `task` as its only task."""
    yaml = YAML()
    params = yaml.load(root / "params.yaml")
    params["finetune"], params["export"]["models"] = {"mine": task}, {"encoder": "encoder"}
    yaml.dump(params, root / "params.yaml")


def check_labels(root: Path) -> None:
    require_readable_labels(root, read_stage_graph(root), read_params(root / "params.yaml"))


@pytest.mark.parametrize(
    ("kind", "task", "told"),
    [
        ("classification", {"data": "labels/mine.xlsx"}, "mine.xlsx has a format that cannot be read"),
        ("classification", {"data": "labels/mine.csv", "text_field": "body"}, "no field `body`|`body`"),
        ("classification", {"data": "labels", "splits": {"train": "mine.csv", "test": "nine.csv"}}, "nine.csv"),
        ("classification", {"data": "labels", "label_files": {"a": "a.txt", "b": "b.txt"}}, "names no file: .*b.txt"),
        ("zero_shot", {"data": "labels/mine.xlsx", "prompt": "It was [MASK]."}, "mine.xlsx"),
        ("tagging", {"data": "labels/mine.xlsx"}, "mine.xlsx"),
        ("question_answering", {"data": "labels/mine.xlsx"}, "mine.xlsx"),
        ("similarity", {"data": "labels/mine.csv", "first_field": "left", "second_field": "text"}, "`left`"),
    ],
)
def test_the_files_of_a_task_are_checked_before_any_stage(
    project: Path, kind: str, task: dict[str, object], told: str
) -> None:
    (project / "labels").mkdir()
    (project / "labels/mine.csv").write_text("text,label\na,b\n")
    for name in ("mine.xlsx", "a.txt"):
        (project / "labels" / name).write_text("a")
    with_task(project, kind=kind, **task)
    with pytest.raises(DataError, match=rf"finetune\.mine: .*({told})"):
        check_labels(project)


def test_readable_label_files_and_outputs_of_later_stages_pass_the_check(project: Path) -> None:
    check_labels(project)
    (project / "mine.csv").write_text("text,label\na,b\n")
    with_task(project, kind="classification", data="mine.csv")
    check_labels(project)


def test_tasks_whose_source_has_no_labels_are_detected() -> None:
    params = read_params(CHECKOUT / "params.yaml")
    assert unlabelled_tasks(params) == []
    source = params.preprocess.source.model_copy(update={"kind": "files"})
    own = params.model_copy(update={"preprocess": params.preprocess.model_copy(update={"source": source})})
    assert unlabelled_tasks(own) == ["library"]
    assert unlabelled_tasks(own.model_copy(update={"finetune": {}})) == []
    labelled = source.model_copy(update={"label_field": "topic"})
    preprocess = params.preprocess.model_copy(update={"source": labelled})
    assert unlabelled_tasks(own.model_copy(update={"preprocess": preprocess})) == []
