"""Inputs that no stage makes are checked before anything runs; the error names their key of params.yaml."""

import hashlib
import logging
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from ruamel.yaml import YAML

from clozeline.orchestration import checks
from clozeline.params.project import Params
from clozeline.params.reading import read_params
from clozeline.pretraining import card
from clozeline.registry.start_lock import START_LOCK, StartLock, write_start_lock
from clozeline.system.errors import ParamsError, StorageError
from clozeline.system.workspace import Workspace
from clozeline.versions.graph import StageNode, read_stage_graph
from clozeline.versions.objects import Objects
from tests.make.params import with_values
from tests.make.projects import PROJECT, merge, with_own_stages

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


def node(name: str, out: str, *deps: str, is_changed: bool = True) -> StageNode:
    return StageNode(name, (), "", deps, (out,), (), (), is_changed)


def with_last_run(root: Path, **sizes: int) -> None:
    stages = {out: {"cmd": "x", "outs": [{"path": f"models/{out}", "size": size}]} for out, size in sizes.items()}
    YAML().dump({"schema": "2.0", "stages": stages}, root / "dvc.lock")


def test_a_run_needs_as_much_disk_as_last_time_or_an_estimate_and_room_for_one_checkpoint_more(
    tmp_path: Path, params: Params
) -> None:
    """A checkpoint takes three times the weights, 1 GB here: those that are kept, and the one that is being written."""
    (tmp_path / "raw.txt").write_bytes(b"x" * 5_000_000)
    assert checks.needed_bytes(tmp_path, [node("preprocess", "data/clean", "raw.txt")], params) >= 5_000_000
    assert checks.needed_bytes(tmp_path, [PRETRAIN], params) > 50_000_000
    with_last_run(tmp_path, clean=3_000_000_000, encoder=1_000_000_000)
    assert 3e9 <= checks.needed_bytes(tmp_path, [node("clean", "models/clean")], params) < 3.2e9
    assert checks.needed_bytes(tmp_path, [node("clean", "models/clean", is_changed=False)], params) == 0
    two = changed(params, {"pretrain": {"num_checkpoints": 2}})
    assert 10e9 <= checks.needed_bytes(tmp_path, [PRETRAIN], two) < 10.2e9


def test_a_run_too_large_for_the_disk_is_refused_with_advice_that_deletes_no_data(
    tmp_path: Path, params: Params, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def require_with(free: float) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: Mock(free=int(free)))
        checks.require_disk_space(tmp_path, [node("clean", "models/clean")], params)

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


def test_a_module_that_dvc_does_not_watch_or_that_is_missing_is_refused_before_any_stage_that_needs_it(
    root: Path, params: Params
) -> None:
    with pytest.raises(ParamsError, match=re.escape("`- mine.py` below `deps:` of `pretrain`")):
        require_own(root, params, deps=("data/tokens",))
    require_own(root, params)
    with pytest.raises(ParamsError, match="No module named 'not_there'"):
        require_own(root, params, "not_there:build")
    require_own(root, params, "not_there:build", is_changed=False)
    require_own(root, params, "modernbert", deps=())


def test_an_encoder_that_cannot_be_exported_is_refused_only_if_models_are_exported(
    root: Path, params: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (root / "mine.py").read_text()
    branch = "assert int(input_ids.sum()) >= 0\n        is_padding = "
    (root / "mine.py").write_text(source.replace("is_padding = ", branch))
    require_own(root, params)
    with pytest.raises(ParamsError, match="cannot be exported to ONNX"):
        require_own(root, params, is_exported=True)
    monkeypatch.setattr(card, "_trace", tried := Mock())
    for num_tries, edit in ((1, ""), (1, ""), (2, "# edited\n")):
        (root / "mine.py").write_text(source + edit)
        require_own(root, params, is_exported=True)
        assert tried.call_count == num_tries, "what succeeded is not tried again until the code changes"


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


def test_the_first_lock_names_the_champion_and_a_recipe_with_new_weights_clears_it(
    continuing: Path, champion: StartLock
) -> None:
    lock_file = continuing / START_LOCK
    for change in (lambda: lock_file.write_bytes(SHIPPED), lock_file.unlink):
        change()
        assert settle(continuing), "even before the snapshot stage"
        assert lock_of(continuing) == champion
    of_champion = lock_file.read_bytes()

    def is_kept(content: bytes) -> bool:
        md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
        with Objects.open(continuing) as objects:
            return objects.fault_of("no such file", md5, commit=None) is None

    assert is_kept(of_champion)
    with_values(continuing, recipe="measured")
    assert settle(continuing)
    assert lock_file.read_bytes() == SHIPPED
    assert not settle(continuing), "a project without a start is left unchanged"
    assert is_kept(SHIPPED), "the cache keeps all locks"


@pytest.mark.parametrize("place", ["moved", "copied", "hard-linked", "copied to the same path on another machine"])
def test_a_workspace_keeps_its_identity_and_a_copy_gets_its_own(tmp_path: Path, place: str) -> None:
    root, other = tmp_path / "first", tmp_path / "other"
    first = checks.identity_of(Workspace(root))
    assert checks.identity_of(Workspace(root)) == first
    if place == "moved":
        root.rename(other)
    else:
        shutil.copytree(root, other, copy_function=os.link if place == "hard-linked" else shutil.copy2)
    if place.endswith("machine"):
        root.rename(tmp_path / "not on that machine")
        other = other.rename(root)
    assert (checks.identity_of(Workspace(other)) == first) == (place == "moved")
    assert checks.identity_of(Workspace(other)) == checks.identity_of(Workspace(other))
    if place in {"copied", "hard-linked"}:
        assert checks.identity_of(Workspace(root)) == first
