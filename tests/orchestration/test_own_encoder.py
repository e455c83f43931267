"""Before a run, an encoder of one's own is tried, and its file has to be a dep of `pretrain`."""

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from clozeline.encoder.families.layout import TokenIds
from clozeline.encoder.own import fresh_own
from clozeline.orchestration.checks import require_own_encoder
from clozeline.params.project import Params
from clozeline.params.reading import read_params
from clozeline.pretraining import card
from clozeline.system.errors import ParamsError
from clozeline.system.workspace import Workspace
from clozeline.versions.graph import StageNode

PROJECT = Path(__file__).parents[2]
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
