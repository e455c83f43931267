"""A run that would fill the disk is refused before it starts, by the sizes of the last run or of the plan."""

import logging
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from clozeline.orchestration import checks
from clozeline.orchestration.checks import needed_bytes, require_disk_space
from clozeline.params.project import Params
from clozeline.params.reading import read_params
from clozeline.system.errors import StorageError
from clozeline.versions.graph import StageNode

PROJECT = Path(__file__).parents[2]
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
