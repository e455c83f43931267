"""After an upgrade, outputs are adopted if the code that made them only moved; everything else runs again."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clozeline.cli import app, project
from clozeline.versions.adoption import PIN, StageCode, adopt
from clozeline.versions.graph import read_stage_graph

GRAPH = """
stages:
  train:
    cmd: python -c "open('model', 'w').write(open('text').read())"
    deps: [src/clozeline/training, text]
    outs: [model]
  package:
    cmd: python -c "open('package', 'w').write(open('model').read())"
    deps: [model, requirements.lock, src/clozeline/export.py]
    outs: [package]
"""
LOOP = '"""Trains."""\nimport math\n\ndef loop(steps):\n    """Run it."""\n    return math.sqrt(steps)\n\nRATE = 0.1\n'
CODE = {"training/loop.py": LOOP, "export.py": "def export():\n    return 1\n"}
MOVED = {"training/loop.py": LOOP.replace("RATE = 0.1\n", ""), "training/rates.py": "RATE = 0.1\n"}


def write(root: Path, files: dict[str, str]) -> None:
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content)


def run(root: Path, *command: str) -> str:
    return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout


def dvc(root: Path, *arguments: str) -> str:
    return run(root, sys.executable, "-m", "dvc", *arguments)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("template")
    code = {f"src/clozeline/{path}": content for path, content in CODE.items()}
    write(root, {"dvc.yaml": GRAPH, "text": "a", PIN: "numpy==2\n", **code})
    run(root, "git", "init", "-q")
    dvc(root, "init", "-q")
    dvc(root, "repro", "-q")
    run(root, "git", "add", ".")
    run(root, "git", "-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-q", "-m", "run")
    return root


@pytest.fixture
def checkout(template: Path, tmp_path: Path) -> Path:
    """A checkout whose stages have run, and were committed."""
    return shutil.copytree(template, tmp_path / "checkout", symlinks=True)


def changed(root: Path) -> set[str]:
    return {node.name for node in read_stage_graph(root) if node.is_changed}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, "train keep"),
        ({"src/clozeline/training/loop.py": MOVED["training/loop.py"].replace("sqrt", "cbrt")}, "train run again"),
        ({"src/clozeline/training/rates.py": "from cmath import sqrt\nRATE = 0.1\n"}, "train run again"),
        ({"text": "b"}, "train run again"),
        ({"model": "c"}, "train run again"),
        ({"dvc.yaml": GRAPH.replace("open('text').read()", "'a'")}, "train run again"),
        ({PIN: "numpy==3\n"}, "package run again"),
    ],
)
def test_a_checkout_keeps_the_outputs_of_code_that_only_moved(
    checkout: Path, change: dict[str, str], told: str
) -> None:
    write(checkout, {f"src/clozeline/{path}": content for path, content in MOVED.items()} | change)
    run(checkout, "git", "add", ".")
    assert "train" in changed(checkout)
    shown = CliRunner().invoke(app, ["init", str(checkout), "--upgrade"], catch_exceptions=False).output
    assert told in shown
    assert ("train" in changed(checkout)) == ("train run again" in shown)


def test_a_lock_that_other_code_wrote_proves_nothing(checkout: Path) -> None:
    earlier = StageCode.of_lock(checkout)
    assert earlier
    write(checkout, {"dvc.lock": (checkout / "dvc.lock").read_text().replace(".dir", "0.dir")})
    assert adopt(checkout, earlier, StageCode.of_checkout(checkout))[0] == []


def write_wheel(wheels: Path, code: dict[str, str]) -> Path:
    """Write a wheel with this code, as a project pins it."""
    with zipfile.ZipFile(wheels / "clozeline-1-py3-none-any.whl", "w") as wheel:
        for path, content in {"starter/stages.yaml": GRAPH, **code}.items():
            wheel.writestr(f"clozeline/{path}", content)
    return wheels / "clozeline-1-py3-none-any.whl"


@pytest.mark.parametrize(
    ("code", "libraries", "adopted"),
    [(MOVED, "numpy==2", ["train"]), (MOVED, "numpy==3", []), ({"training/loop.py": "RATE = 0.2\n"}, "numpy==2", [])],
    ids=["code moved", "other libraries", "another definition"],
)
def test_a_project_keeps_them_if_its_old_wheel_says_the_same(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, code: dict[str, str], libraries: str, adopted: list[str]
) -> None:
    theirs = GRAPH.replace("src/clozeline/training", PIN).replace(", src/clozeline/export.py", "")
    write(checkout, {"dvc.yaml": theirs, PIN: "# old\nclozeline==1\nnumpy==2\n", "params.yaml": "", "wheels/x": ""})
    dvc(checkout, "repro", "-q")
    (checkout / "src").rename(checkout / "no code here")
    write_wheel(checkout / "wheels", CODE)

    def pin(folder: Path) -> None:
        write_wheel(folder / "wheels", {**CODE, **code})
        write(folder, {PIN: f"# new\nclozeline==2\n{libraries}\n"})

    monkeypatch.setattr(project, "pin", pin)
    assert project.upgrade_project(checkout)[0] == adopted
    assert "package" in changed(checkout), "its packages name the libraries"
    assert ("train" not in changed(checkout)) == bool(adopted)
