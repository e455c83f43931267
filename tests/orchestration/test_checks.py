"""Inputs that no stage makes are checked before anything runs; the error names their key of params.yaml."""

import hashlib
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from ruamel.yaml import YAML

from clozeline.encoder.families.layout import TokenIds
from clozeline.encoder.own import fresh_own
from clozeline.orchestration import checks
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
from tests.make.projects import PROJECT, merge, with_own_stages

DATA = "classification\n    data: data/clean"
PRETRAIN = StageNode("pretrain", (), "", ("data/tokens",), ("models/encoder",), (), (), is_changed=True)


@pytest.fixture(autouse=True)
def own_logger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "get_run_logger", lambda: logging.getLogger("run"))


@pytest.fixture
def project(toy: Path) -> Path:
    return with_own_stages(toy)


@pytest.fixture(scope="module")
def params() -> Params:
    return read_params(PROJECT / "params.yaml")


def changed(params: Params, changes: Mapping[str, object]) -> Params:
    tree = params.model_dump()
    merge(tree, changes)
    return Params.model_validate(tree)


def set_param(root: Path, old: str, new: str) -> None:
    file = root / "params.yaml"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new, 1))


def check(root: Path, *done: str) -> None:
    checks.require_inputs(root, read_stage_graph(root), done)


@pytest.mark.parametrize(
    ("key", "old", "path", "stage"),
    [
        ("preprocess.source.path", "path: corpus.lock", "my-texts", "snapshot"),
        ("finetune.library.data", DATA, "/nowhere/mine.parquet", "finetune@library"),
    ],
)
def test_a_missing_source_is_named_with_its_key(project: Path, key: str, old: str, path: str, stage: str) -> None:
    set_param(project, old, f"{old.rpartition(': ')[0]}: {path}")
    with pytest.raises(DataError) as caught:
        check(project)
    assert all(told in caught.value.problem for told in (path, f"`{stage}`", f"({key})"))
    assert f"correct {key}" in caught.value.do


@pytest.mark.parametrize(
    ("task", "told"),
    [
        ({"kind": "classification", "data": "labels/mine.csv"}, None),
        ({"kind": "classification", "data": "labels/mine.csv", "text_field": "body"}, "`body`"),
        ({"kind": "classification", "data": "labels", "splits": {"train": "mine.csv", "test": "nine.csv"}}, "nine.csv"),
        ({"kind": "similarity", "data": "labels/mine.csv", "first_field": "left", "second_field": "text"}, "`left`"),
        ({"kind": "tagging", "data": "labels/mine.xlsx"}, "mine.xlsx"),
    ],
)
def test_the_files_of_a_task_are_checked_before_any_stage(
    project: Path, task: dict[str, object], told: str | None
) -> None:
    checks.require_readable_labels(project, read_stage_graph(project), read_params(project / "params.yaml"))
    (project / "labels").mkdir()
    (project / "labels/mine.csv").write_text("text,label\na,b\n")
    (project / "labels/mine.xlsx").write_text("a")
    yaml = YAML()
    tree = yaml.load(project / "params.yaml")
    tree["finetune"], tree["export"]["models"] = {"mine": task}, {"encoder": "encoder"}
    yaml.dump(tree, project / "params.yaml")
    graph, params = read_stage_graph(project), read_params(project / "params.yaml")
    with pytest.raises(DataError, match=rf"finetune\.mine: .*{told}") if told else nullcontext():
        checks.require_readable_labels(project, graph, params)


def test_tasks_whose_source_has_no_labels_are_detected(params: Params) -> None:
    own: dict[str, object] = {"preprocess": {"source": {"kind": "files"}}}
    labelled = {"preprocess": {"source": {"kind": "files", "label_field": "topic"}}}
    assert checks.unlabelled_tasks(params) == []
    assert checks.unlabelled_tasks(changed(params, own)) == ["library"]
    assert checks.unlabelled_tasks(changed(params, own).model_copy(update={"finetune": {}})) == []
    assert checks.unlabelled_tasks(changed(params, labelled)) == []


def node(name: str, out: str, *deps: str, is_changed: bool = True) -> StageNode:
    return StageNode(name, (), "", deps, (out,), (), (), is_changed)


def with_last_run(root: Path, **sizes: int) -> None:
    stages = {name: {"cmd": "x", "outs": [{"path": f"out/{name}", "size": size}]} for name, size in sizes.items()}
    YAML().dump({"schema": "2.0", "stages": stages}, root / "dvc.lock")


def test_only_changed_stages_need_disk_space_as_much_as_their_last_outputs(tmp_path: Path, params: Params) -> None:
    with_last_run(tmp_path, clean=3_000_000_000, tokens=1_000_000_000)
    unchanged = node("tokens", "out/tokens", is_changed=False)
    assert 3e9 <= checks.needed_bytes(tmp_path, [node("clean", "out/clean"), unchanged], params) < 3.2e9
    assert checks.needed_bytes(tmp_path, [unchanged], params) == 0


def test_the_space_for_a_first_run_is_estimated_from_source_and_params(tmp_path: Path, params: Params) -> None:
    (tmp_path / "raw.txt").write_bytes(b"x" * 5_000_000)
    assert checks.needed_bytes(tmp_path, [node("preprocess", "data/clean", "raw.txt")], params) >= 5_000_000
    assert checks.needed_bytes(tmp_path, [PRETRAIN], params) > 50_000_000


def test_a_training_needs_room_for_one_checkpoint_more_than_it_keeps(tmp_path: Path, params: Params) -> None:
    """A checkpoint takes three times the weights, 1 GB here: those that are kept, and the one that is being written."""
    outs = [{"path": "models/encoder", "size": 1_000_000_000}]
    YAML().dump({"schema": "2.0", "stages": {"pretrain": {"cmd": "x", "outs": outs}}}, tmp_path / "dvc.lock")
    two = changed(params, {"pretrain": {"num_checkpoints": 2}})
    assert 10e9 <= checks.needed_bytes(tmp_path, [PRETRAIN], two) < 10.2e9


def test_a_run_too_large_for_the_disk_is_refused_with_advice_that_deletes_no_data(
    tmp_path: Path, params: Params, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def require_with(free: float) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: Mock(free=int(free)))
        checks.require_disk_space(tmp_path, [node("clean", "out/clean")], params)

    with_last_run(tmp_path, clean=3_000_000_000)
    with pytest.raises(StorageError, match="too little room") as caught:
        require_with(1e9)
    advice = caught.value.do.replace("`clozeline gc` lists", "")  # without --yes it removes nothing
    assert not {"gc", "rm", "rm -rf"} & set(advice.replace("`", " ").split())
    require_with(9e9)
    assert not caplog.text
    require_with(4e9)
    assert "GB of disk are free" in caplog.text


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the encoder that docs/pretraining.md shows."""
    page = (PROJECT / "docs/pretraining.md").read_text(encoding="utf-8")
    documented = re.search(r"```python\n(from torch.*?)```", page, re.DOTALL)
    assert documented is not None
    (tmp_path / "mine.py").write_text(documented.group(1))
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("mine", None)


def require_own(
    root: Path, params: Params, family: str = "mine:build", *, is_exported: bool = False, **of_node: object
) -> None:
    own = changed(params, {"pretrain": {"model": {"family": family}}})
    if not is_exported:
        own = own.model_copy(update={"export": own.export.model_copy(update={"models": {}})})
    given = replace(PRETRAIN, **({"deps": ("mine.py",)} | of_node))
    checks.require_own_encoder(Workspace(root), [given], own)


def test_a_file_that_dvc_does_not_watch_is_refused_with_the_line_to_add(root: Path, params: Params) -> None:
    with pytest.raises(ParamsError, match=re.escape("`- mine.py` below `deps:` of `pretrain`")):
        require_own(root, params, deps=("data/tokens",))
    require_own(root, params)


def test_an_encoder_that_cannot_be_exported_is_refused_only_if_models_are_exported(root: Path, params: Params) -> None:
    source = (root / "mine.py").read_text()
    branch = "assert int(input_ids.sum()) >= 0\n        is_padding = "
    (root / "mine.py").write_text(source.replace("is_padding = ", branch))
    require_own(root, params)
    with pytest.raises(ParamsError, match="cannot be exported to ONNX"):
        require_own(root, params, is_exported=True)


def test_an_export_that_succeeded_is_not_tried_again_until_the_code_changes(
    root: Path, params: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = changed(params, {"pretrain": {"model": {"family": "mine:build"}}}).pretrain.model
    monkeypatch.setattr(card, "_trace", tried := Mock(side_effect=[ValueError("a branch"), None, None]))
    with pytest.raises(ParamsError, match="a branch"):
        require_own(root, params, is_exported=True)
    require_own(root, params, is_exported=True)
    card.check_export(fresh_own(model, TokenIds(300, pad_id=0, cls_id=2, sep_id=3)), Workspace(root).work / "pretrain")
    assert tried.call_count == 2, "the stage finds what the flow has found"
    with (root / "mine.py").open("a") as file:
        file.write("# edited\n")
    require_own(root, params, is_exported=True)
    assert tried.call_count == 3


def test_a_missing_module_is_said_before_any_stage_that_needs_it(root: Path, params: Params) -> None:
    with pytest.raises(ParamsError, match="No module named 'not_there'"):
        require_own(root, params, "not_there:build")
    require_own(root, params, "not_there:build", is_changed=False)
    require_own(root, params, "modernbert", deps=())


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
    monkeypatch.setattr(checks, "locked_champion", lambda model, text, _: lock.model_copy(update={"text": text}))
    monkeypatch.setattr(checks, "fetch_trained", lambda lock, workspace: workspace.root)
    return lock


def settle(root: Path, *, is_new: bool = True) -> bool:
    """Settle start.lock; `is_new`: whether a snapshot will be taken."""
    return checks.settle_start(Workspace(root), graph_of(root, is_new=is_new), read_params(root / "params.yaml"))


def graph_of(root: Path, *, is_new: bool) -> list[StageNode]:
    graph = read_stage_graph(root)
    return [replace(node, is_changed=is_new) if node.name == "snapshot" else node for node in graph]


def lock_of(root: Path) -> StartLock | None:
    return StartLock.of_yaml(root / START_LOCK)


@pytest.mark.parametrize("change", [lambda file: file.write_bytes(SHIPPED), Path.unlink])
def test_the_first_lock_names_the_champion_even_before_the_snapshot_stage(
    continuing: Path, champion: StartLock, change: Callable[[Path], object]
) -> None:
    change(continuing / START_LOCK)
    assert settle(continuing)
    assert lock_of(continuing) == champion


def test_only_a_new_snapshot_or_another_architecture_changes_the_start(continuing: Path, champion: StartLock) -> None:
    older = champion.model_copy(update={"version": "2", "text": OLD})
    write_start_lock(continuing / START_LOCK, older)
    assert not settle(continuing), "the last lock stays until the snapshot is taken"
    for md5, is_changed in ((OLD, False), (NEW, True)):
        out = f"{{path: data/raw, md5: {md5}}}"
        (continuing / "dvc.lock").write_text(f"{{schema: '2.0', stages: {{snapshot: {{cmd: take, outs: [{out}]}}}}}}")
        assert settle(continuing, is_new=False) == is_changed
        assert lock_of(continuing) == (champion.model_copy(update={"text": NEW}) if is_changed else older)
    write_start_lock(continuing / START_LOCK, older.model_copy(update={"architecture": {"objective": "rtd"}}))
    assert settle(continuing)
    assert lock_of(continuing) == champion


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


def test_a_project_without_a_start_is_left_unchanged(project: Path) -> None:
    assert not settle(project)
    assert (project / START_LOCK).read_bytes() == SHIPPED
    assert not (project / ".dvc/cache").exists()


def test_a_start_that_is_already_local_needs_no_registry(
    continuing: Path, champion: StartLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = TransientError("the registry does not answer", given="", expected="", do="")
    monkeypatch.setattr(checks, "check_still_registered", Mock(side_effect=away))
    monkeypatch.setattr(checks, "fetch_trained", fetched := Mock())
    write_start_lock(continuing / START_LOCK, champion)
    graph = graph_of(continuing, is_new=False)
    checks.require_start(Workspace(continuing), graph, read_params(continuing / "params.yaml"))
    assert fetched.call_args.args[0] == champion


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
    settings = checks.locked_architecture(Lock.model_validate({"stages": {"pretrain": stage}}))
    assert settings == read_params(path).pretrain.architecture
    assert settings["model.max_position_embeddings"] == 2048
    assert checks.locked_architecture(Lock(stages={})) == {}, "no stage trained it"


def on_another_machine(root: Path) -> Path:
    shutil.copytree(root, root.with_name("on its way"))
    root.rename(root.with_name("not on that machine"))
    return root.with_name("on its way").rename(root)


PLACES = {
    "moved": lambda root: root.rename(root.with_name("moved")),
    "copied": lambda root: shutil.copytree(root, root.with_name("copied")),
    "hard-linked": lambda root: shutil.copytree(root, root.with_name("linked"), copy_function=os.link),
    "copied to the same path on another machine": on_another_machine,
}


@pytest.mark.parametrize("place", PLACES)
def test_a_workspace_keeps_its_identity_and_a_copy_gets_its_own(tmp_path: Path, place: str) -> None:
    first = checks.identity_of(Workspace(tmp_path / "first"))
    assert checks.identity_of(Workspace(tmp_path / "first")) == first
    assert checks.identity_of(Workspace(tmp_path / "another")) != first
    other = Workspace(PLACES[place](tmp_path / "first"))
    assert (checks.identity_of(other) == first) == (place == "moved")
    assert checks.identity_of(other) == checks.identity_of(other)
    if place in {"copied", "hard-linked"}:
        assert checks.identity_of(Workspace(tmp_path / "first")) == first
