"""Inputs that no stage makes are checked before anything runs; the error names their key of params.yaml."""

import hashlib
import logging
import os
import re
import shutil
import sys
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from prefect.logging import disable_run_logger
from ruamel.yaml import YAML

from clozeline.encoder.families.layout import TokenIds
from clozeline.encoder.own import fresh_own
from clozeline.orchestration import checks
from clozeline.orchestration.checks import (
    identity_of,
    locked_architecture,
    needed_bytes,
    require_disk_space,
    require_inputs,
    require_own_encoder,
    require_readable_labels,
    unlabelled_tasks,
)
from clozeline.params.project import Params
from clozeline.params.reading import complete_tree, read_params
from clozeline.pretraining import card
from clozeline.records.record import Lock
from clozeline.registry.start_lock import START_LOCK, StartLock, write_start_lock
from clozeline.system.errors import DataError, ParamsError, StorageError, TransientError
from clozeline.system.workspace import Workspace
from clozeline.versions.graph import StageNode, read_stage_graph
from clozeline.versions.objects import Objects
from tests.make.params import with_values
from tests.make.projects import with_own_stages

PROJECT = Path(__file__).parents[2]
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
    with pytest.raises(DataError, match=f"{path} does not exist in .*stage `{stage}`") as caught:
        check(project)
    assert f"({key})" in caught.value.problem
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
    params = read_params(PROJECT / "params.yaml")
    assert unlabelled_tasks(params) == []
    source = params.preprocess.source.model_copy(update={"kind": "files"})
    own = params.model_copy(update={"preprocess": params.preprocess.model_copy(update={"source": source})})
    assert unlabelled_tasks(own) == ["library"]
    assert unlabelled_tasks(own.model_copy(update={"finetune": {}})) == []
    labelled = source.model_copy(update={"label_field": "topic"})
    preprocess = params.preprocess.model_copy(update={"source": labelled})
    assert unlabelled_tasks(own.model_copy(update={"preprocess": preprocess})) == []


Usage = namedtuple("Usage", "total used free")


@pytest.fixture(scope="module")
def params() -> Params:
    return read_params(PROJECT / "params.yaml")


@pytest.fixture(autouse=True)
def own_logger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "get_run_logger", lambda: logging.getLogger("run"))


def node(name: str, out: str, *, deps: tuple[str, ...] = (), is_changed: bool = True) -> StageNode:
    return StageNode(name, (), "", deps, (out,), (), (), is_changed)


def with_last_run(root: Path, **sizes: int) -> None:
    stages = {name: {"cmd": "x", "outs": [{"path": f"out/{name}", "size": size}]} for name, size in sizes.items()}
    YAML().dump({"schema": "2.0", "stages": stages}, root / "dvc.lock")


def test_only_changed_stages_need_disk_space_as_much_as_their_last_outputs(tmp_path: Path, params: Params) -> None:
    with_last_run(tmp_path, clean=3_000_000_000, tokens=1_000_000_000)
    changed, unchanged = node("clean", "out/clean"), node("tokens", "out/tokens", is_changed=False)
    assert 3e9 <= needed_bytes(tmp_path, [changed, unchanged], params) < 3.2e9
    assert needed_bytes(tmp_path, [unchanged], params) == 0


def test_the_space_for_a_first_run_is_estimated_from_source_and_params(tmp_path: Path, params: Params) -> None:
    (tmp_path / "raw.txt").write_bytes(b"x" * 5_000_000)
    text = needed_bytes(tmp_path, [node("preprocess", "data/clean", deps=("raw.txt",))], params)
    assert text >= 5_000_000
    trained = needed_bytes(tmp_path, [node("pretrain", "models/encoder")], params)
    larger = params.model_copy(update={"pretrain": params.pretrain.model_copy(update={"num_checkpoints": 9})})
    assert needed_bytes(tmp_path, [node("pretrain", "models/encoder")], larger) > trained > 50_000_000


def test_a_training_needs_room_for_one_checkpoint_more_than_it_keeps(tmp_path: Path, params: Params) -> None:
    """A checkpoint takes three times the weights, 1 GB here: those that are kept, and the one that is being written."""
    outs = [{"path": "models/encoder", "size": 1_000_000_000}]
    YAML().dump({"schema": "2.0", "stages": {"pretrain": {"cmd": "x", "outs": outs}}}, tmp_path / "dvc.lock")
    two = params.model_copy(update={"pretrain": params.pretrain.model_copy(update={"num_checkpoints": 2})})
    assert 10e9 <= needed_bytes(tmp_path, [node("pretrain", "models/encoder")], two) < 10.2e9


@pytest.mark.parametrize(
    ("free", "is_refused", "is_warned"), [(1e9, True, False), (4e9, False, True), (9e9, False, False)]
)
def test_a_run_too_large_for_the_disk_is_refused_with_advice_that_deletes_no_data(
    tmp_path: Path,
    params: Params,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    free: float,
    is_refused: bool,
    is_warned: bool,
) -> None:
    with_last_run(tmp_path, clean=3_000_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1e12, 0, int(free)))
    graph = [node("clean", "out/clean")]
    if is_refused:
        with pytest.raises(StorageError, match="too little room") as caught:
            require_disk_space(tmp_path, graph, params)
        advice = caught.value.do.replace("`clozeline gc` lists", "")  # without --yes it removes nothing
        assert not {"gc", "rm", "rm -rf"} & set(advice.replace("`", " ").split())
    else:
        require_disk_space(tmp_path, graph, params)
    assert ("GB of disk are free" in caplog.text) == is_warned


DOCUMENTED = re.search(
    r"```python\n(from torch.*?)```", (PROJECT / "docs" / "pretraining.md").read_text(encoding="utf-8"), re.DOTALL
)
NODE = StageNode("pretrain", (), "", ("data/tokens",), ("models/encoder",), (), (), is_changed=True)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    assert DOCUMENTED is not None
    (tmp_path / "mine.py").write_text(DOCUMENTED.group(1))
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("mine", None)


def params_with(family: str, *, is_exported: bool = False) -> Params:
    params = read_params(PROJECT / "params.yaml")
    model = params.pretrain.model.model_copy(update={"family": family})
    export = params.export if is_exported else params.export.model_copy(update={"models": {}})
    return params.model_copy(update={"pretrain": params.pretrain.model_copy(update={"model": model}), "export": export})


def test_a_file_that_dvc_does_not_watch_is_refused_with_the_line_to_add(root: Path) -> None:
    with pytest.raises(ParamsError, match=re.escape("`- mine.py` below `deps:` of `pretrain`")):
        require_own_encoder(Workspace(root), [NODE], params_with("mine:build"))
    require_own_encoder(Workspace(root), [replace(NODE, deps=("mine.py",))], params_with("mine:build"))


def test_an_encoder_that_cannot_be_exported_is_refused_only_if_models_are_exported(root: Path) -> None:
    source = (root / "mine.py").read_text()
    branch = "assert int(input_ids.sum()) >= 0\n        is_padding = "
    (root / "mine.py").write_text(source.replace("is_padding = ", branch))
    nodes = [replace(NODE, deps=("mine.py",))]
    require_own_encoder(Workspace(root), nodes, params_with("mine:build"))
    with pytest.raises(ParamsError, match="cannot be exported to ONNX"):
        require_own_encoder(Workspace(root), nodes, params_with("mine:build", is_exported=True))


def test_an_export_that_succeeded_is_not_tried_again_until_the_code_changes(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [replace(NODE, deps=("mine.py",))]
    params = params_with("mine:build", is_exported=True)
    work = Workspace(root).work / "pretrain"  # of the stage in dvc.yaml
    monkeypatch.setattr(card, "_trace", tried := Mock(side_effect=[ValueError("a branch"), None, None]))
    with pytest.raises(ParamsError, match="a branch"):
        require_own_encoder(Workspace(root), nodes, params)
    require_own_encoder(Workspace(root), nodes, params)
    card.check_export(fresh_own(params.pretrain.model, TokenIds(300, pad_id=0, cls_id=2, sep_id=3)), work)
    assert tried.call_count == 2, "the stage finds what the flow has found"
    with (root / "mine.py").open("a") as file:
        file.write("# edited\n")
    require_own_encoder(Workspace(root), nodes, params)
    assert tried.call_count == 3


@pytest.mark.parametrize(
    ("family", "is_changed"), [("modernbert", True), ("not_there:build", False)], ids=["no own one", "up to date"]
)
def test_nothing_is_tried_without_need(root: Path, family: str, is_changed: bool) -> None:
    require_own_encoder(Workspace(root), [replace(NODE, is_changed=is_changed)], params_with(family))


def test_a_missing_module_is_said_before_any_stage(root: Path) -> None:
    with pytest.raises(ParamsError, match="No module named 'not_there'"):
        require_own_encoder(Workspace(root), [NODE], params_with("not_there:build"))


SHIPPED = (PROJECT / START_LOCK).read_bytes()
OLD, NEW = "ab" * 16, "cd" * 16


@pytest.fixture
def continuing(toy: Path) -> Path:
    with_values(toy, recipe="continue")
    return with_own_stages(toy)


@pytest.fixture
def champion(continuing: Path, monkeypatch: pytest.MonkeyPatch) -> StartLock:
    """The champion of the registry, version 3, with the architecture that the params ask for."""
    architecture = read_params(continuing / "params.yaml").pretrain.architecture
    lock = StartLock(model="clozeline-encoder", version="3", text="", files={"w": "3c"}, architecture=architecture)
    monkeypatch.setattr(
        checks, "locked_champion", lambda model, text, workspace: lock.model_copy(update={"text": text})
    )
    monkeypatch.setattr(checks, "fetch_trained", lambda lock, workspace: workspace.root)
    return lock


def older(champion: StartLock, **changes: object) -> StartLock:
    return champion.model_copy(update={"version": "2", "text": OLD, **changes})


def settle(root: Path, *, is_new: bool = True) -> bool:
    """Settle start.lock; `is_new`: whether a snapshot will be taken."""
    graph = [_node(node, is_new) for node in read_stage_graph(root)]
    with disable_run_logger():
        return checks.settle_start(Workspace(root), graph, read_params(root / "params.yaml"))


def _node(node: StageNode, is_new: bool) -> StageNode:
    return replace(node, is_changed=is_new) if node.name == "snapshot" else node


def snapshot(root: Path, md5: str) -> None:
    out = f"{{path: data/raw, md5: {md5}}}"
    (root / "dvc.lock").write_text(f"{{schema: '2.0', stages: {{snapshot: {{cmd: take, outs: [{out}]}}}}}}")


def lock_of(root: Path) -> StartLock | None:
    return StartLock.of_yaml(root / START_LOCK)


@pytest.mark.parametrize("change", [lambda file: file.write_bytes(SHIPPED), Path.unlink])
def test_the_first_lock_names_the_champion_even_before_the_snapshot_stage(
    continuing: Path, champion: StartLock, change: Callable[[Path], object]
) -> None:
    change(continuing / START_LOCK)
    assert settle(continuing)
    assert lock_of(continuing) == champion


def test_the_last_lock_stays_until_the_snapshot_is_taken(continuing: Path, champion: StartLock) -> None:
    write_start_lock(continuing / START_LOCK, older(champion))
    assert not settle(continuing)
    assert lock_of(continuing) == older(champion)


def test_a_lock_of_another_model_is_replaced_if_the_champion_fits(continuing: Path, champion: StartLock) -> None:
    write_start_lock(continuing / START_LOCK, older(champion, architecture={"objective": "rtd"}))
    assert settle(continuing)
    assert lock_of(continuing) == champion


def test_only_a_new_snapshot_changes_the_start(continuing: Path, champion: StartLock) -> None:
    write_start_lock(continuing / START_LOCK, older(champion))
    snapshot(continuing, OLD)
    assert not settle(continuing, is_new=False)
    assert lock_of(continuing) == older(champion)
    snapshot(continuing, NEW)
    assert settle(continuing, is_new=False)
    assert lock_of(continuing) == champion.model_copy(update={"text": NEW})


def test_a_recipe_with_new_weights_clears_the_lock_and_the_cache_keeps_all_locks(
    continuing: Path, champion: StartLock
) -> None:
    settle(continuing)
    of_champion = (continuing / START_LOCK).read_bytes()
    with_values(continuing, recipe="measured")
    assert settle(continuing)
    assert (continuing / START_LOCK).read_bytes() == SHIPPED
    (continuing / START_LOCK).unlink()
    with Objects.open(continuing) as objects:
        for content in (SHIPPED, of_champion):
            md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
            assert objects.fault_of(START_LOCK, md5, commit=None) is None


def test_a_project_without_a_start_is_left_unchanged(toy: Path) -> None:
    root = with_own_stages(toy)
    assert not settle(root)
    assert (root / START_LOCK).read_bytes() == SHIPPED
    assert not (root / ".dvc" / "cache").exists()


def test_a_start_that_is_already_local_needs_no_registry(
    continuing: Path, champion: StartLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(lock: StartLock, workspace: Workspace) -> None:
        raise TransientError("the registry does not answer", given="", expected="", do="")

    monkeypatch.setattr(checks, "check_still_registered", away)
    write_start_lock(continuing / START_LOCK, champion)
    fetched = []
    monkeypatch.setattr(checks, "fetch_trained", lambda lock, workspace: fetched.append(lock))
    graph = [_node(node, is_new=False) for node in read_stage_graph(continuing)]
    checks.require_start(Workspace(continuing), graph, read_params(continuing / "params.yaml"))
    assert fetched == [champion]


@pytest.mark.parametrize("recipe", ["measured", "continue"])
def test_the_lock_gives_the_architecture_of_the_training_that_ran(tmp_path: Path, recipe: str) -> None:
    path = with_values(tmp_path, recipe=recipe)
    tree = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    tree["recipes"] = {recipe: {"model": {"max_position_embeddings": 2048, "dropout": 0.2}}}
    with path.open("w", encoding="utf-8") as file:
        YAML().dump(tree, file)
    pretrain = complete_tree(read_params(path))["pretrain"]
    params = {f"pretrain.{key}": pretrain[key] for key in ("recipe", "objective", "model")}
    stage = {"cmd": "train", "params": {"data/params.yaml": params}, "outs": [{"path": "models/encoder"}]}
    settings = locked_architecture(Lock.model_validate({"stages": {"pretrain": stage}}))
    assert settings == read_params(path).pretrain.architecture
    assert settings["model.max_position_embeddings"] == 2048


def test_an_encoder_that_no_stage_trained_has_no_locked_architecture() -> None:
    assert locked_architecture(Lock(stages={})) == {}


def moved(root: Path) -> Path:
    return root.rename(root.with_name("moved"))


def copied(root: Path) -> Path:
    return Path(shutil.copytree(root, root.with_name("copied")))


def hard_linked(root: Path) -> Path:
    return Path(shutil.copytree(root, root.with_name("linked"), copy_function=os.link))


def copied_to_the_same_path_on_another_machine(root: Path) -> Path:
    shutil.copytree(root, root.with_name("on its way"))
    root.rename(root.with_name("not on that machine"))
    return root.with_name("on its way").rename(root)


@pytest.mark.parametrize("place", [moved, copied, hard_linked, copied_to_the_same_path_on_another_machine])
def test_a_workspace_keeps_its_identity_and_a_copy_gets_its_own(tmp_path: Path, place: Callable[[Path], Path]) -> None:
    first = identity_of(Workspace(tmp_path / "first"))
    assert identity_of(Workspace(tmp_path / "first")) == first
    assert identity_of(Workspace(tmp_path / "another")) != first
    other = Workspace(place(tmp_path / "first"))
    assert (identity_of(other) == first) == (place is moved)
    assert identity_of(other) == identity_of(other)
    if place in {copied, hard_linked}:
        assert identity_of(Workspace(tmp_path / "first")) == first
