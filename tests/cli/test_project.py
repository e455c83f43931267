"""Claim: `clozeline init` makes a project that DVC and the params' reader take, and that pins the running Clozeline."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from clozeline.cli import app, project
from clozeline.params.editing import edit
from clozeline.params.reading import read_params
from clozeline.stages.calling.calls import PIN, graph_elsewhere, own_graph
from clozeline.system.errors import ParamsError
from clozeline.system.files import sha256_of
from clozeline.versions.graph import read_stage_graph
from tests.conftest import PROJECT

WHOLE_PARAMS = "data/params.yaml"
IMPORTED = {
    **{"model": "./folder", "revision": None, "task": "fill-mask", "pooling": "mean", "prompts": {}},
    **{"default_prompt": None, "max_length": 64, "reads_pairs": False, "items": "items.jsonl", "sha256": {}},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of the template `lines`, with its text."""
    folder = tmp_path_factory.mktemp("init") / "own"
    project.create_project(folder, "lines")
    (folder / "sentences.txt").write_text("the cat sat on the mat\n" * 3, encoding="utf-8")
    return folder


def read(path: Path) -> object:
    return YAML(typ="safe").load(path)


def test_the_stages_are_ours_with_the_pin_in_place_of_code_and_the_lock_pins_the_running_wheel(made: Path) -> None:
    ours, theirs = own_graph(), graph_elsewhere()
    assert list(theirs["stages"]) == list(ours["stages"])
    assert theirs["plots"] == ours["plots"]
    for name, stage in ours["stages"].items():
        there = theirs["stages"][name]
        own, other = stage.get("do", stage), there.get("do", there)
        unchanged = own.keys() - {"deps"}
        assert {key: own[key] for key in unchanged} == {key: other[key] for key in unchanged}
        assert set(other["deps"]) == {PIN, *(dep for dep in own["deps"] if not dep.startswith("src/"))}
    (wheel,) = (made / "wheels").iterdir()
    lines = (made / PIN).read_text(encoding="utf-8").splitlines()
    assert sha256_of(wheel) in lines[0]
    assert lines[1] == f"clozeline=={wheel.name.split('-')[1]}"
    assert lines[2:] == (PROJECT / PIN).read_text(encoding="utf-8").splitlines()


def test_dvc_reads_the_stages_and_all_follow_the_completed_params(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = {node.name: node for node in read_stage_graph(made)}
    assert next(iter(nodes)) == "params"
    assert [name for name, node in nodes.items() if name != "params" and "params" not in node.parents] == []
    assert "export@encoder" in nodes
    folder = shutil.copytree(made, tmp_path / "own")
    edit(folder / "params.yaml", [("imports.mine", IMPORTED)], "test")
    assert [node.name for node in read_stage_graph(folder, only="import@mine")] == ["params", "import@mine"]
    monkeypatch.chdir(made)
    CliRunner().invoke(app, ["params", "--out", WHOLE_PARAMS], catch_exceptions=False)
    layers = {"recipes", "presets", "finetune_defaults"}
    assert read(made / WHOLE_PARAMS) == read_params(made / "params.yaml").model_dump(mode="json", exclude=layers)


def test_each_template_states_what_dvc_yaml_reads_in_params_yaml() -> None:
    for template in project.TEMPLATES:
        tree: Any = read(path := project.template_file(template))
        assert tree["preprocess"]["source"]["path"]
        assert (tree["finetune"], tree["export"]["models"]) == ({}, {"encoder": "encoder"})
        assert read_params(path).preprocess.source.kind == "files"


def test_infra_is_ours_and_its_images_install_the_wheel(made: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "infra"], cwd=PROJECT, capture_output=True, text=True, check=True)
    missing = [name for name in listed.stdout.split() if not (made / name).is_file()]
    assert missing == [], "link them in src/clozeline/starter/files; `_` ends the name of Python files"
    for name in listed.stdout.split():
        theirs = (made / name).read_text(encoding="utf-8")
        if name.startswith("infra/Dockerfile"):
            assert "wheels" in theirs
            assert not re.search(r"^COPY src|^!src|pip install .*-e ", theirs, re.MULTILINE)
        elif name != "infra/README.md":
            assert theirs == (PROJECT / name).read_text(encoding="utf-8"), f"{name} is no longer a link"
    for page in [path for path in made.rglob("*.md") if ".venv" not in path.parts]:
        links = re.findall(r"\]\((?!https?:|#)([^)#]*)", page.read_text(encoding="utf-8"))
        assert [link for link in links if not (page.parent / link).exists()] == [], page


def test_its_flows_workflow_and_own_test_work(made: Path) -> None:
    for file, flow in re.findall(r"entrypoint: (\S+):(\w+)", (made / "infra/prefect.yaml").read_text(encoding="utf-8")):
        assert f"from clozeline.flows.{Path(file).stem} import {flow}" in (made / file).read_text(encoding="utf-8")
    workflow = [".github/workflows/ci.yaml", "--builtin-schema", "vendor.github-workflows"]
    tests = ["discover", "--start-directory", "tests"]
    for command in (["check_jsonschema", *workflow], ["unittest", *tests]):
        done = subprocess.run([sys.executable, "-m", *command], cwd=made, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_an_upgrade_writes_pin_and_stages_and_files_of_another_project_are_kept(tmp_path: Path) -> None:
    project.create_project(tmp_path, "mlm")
    (tmp_path / "params.yaml").write_text("pretrain: {steps: 700}\n", encoding="utf-8")
    with pytest.raises(ParamsError, match="already has files of a project"):
        project.create_project(tmp_path, "mlm")
    for name in ("dvc.yaml", PIN):
        (tmp_path / name).write_text("old\n", encoding="utf-8")
    project.upgrade_project(tmp_path)
    assert read(tmp_path / "dvc.yaml") == graph_elsewhere()
    assert "clozeline==" in (tmp_path / PIN).read_text(encoding="utf-8")
    assert (tmp_path / "params.yaml").read_text(encoding="utf-8") == "pretrain: {steps: 700}\n"
    with pytest.raises(ParamsError, match="is not a project"):
        project.upgrade_project(tmp_path / "none")


def test_a_new_project_says_where_its_text_goes_and_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["init", "mine", "--template", "lines"])
    assert result.exit_code == 0, result.output
    assert "Put your text at mine/sentences.txt, then: `cd mine && clozeline run`" in result.output
    assert (tmp_path / "mine/params.yaml").is_file()
