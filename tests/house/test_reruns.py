"""Claim: by DVC's own reading of dvc.yaml, an edit re-runs exactly the stages whose result it can change."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from dvc.repo import Repo, lock_repo

PROJECT = Path(__file__).parents[2]
FIRST = "pretrain"
TASKS = frozenset({"finetune@library", "finetune@docsearch"})
EXPORTS = frozenset({"export@encoder", "export@library", "export@docsearch"})
STAGES = frozenset({"snapshot", "preprocess", "tokenize", FIRST, "evaluate"}) | TASKS | EXPORTS
# Stage → dep → hash of the dep, or values of the params.
Inputs = Mapping[str, Mapping[str, Any]]
MORE = """
  more:
    kind: tagging
    data: more.conll
"""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """dvc.yaml, params.yaml and the code, without data."""
    root = tmp_path_factory.mktemp("original")
    Repo.init(str(root), no_scm=True).close()
    for name in ("dvc.yaml", "params.yaml"):
        shutil.copy(PROJECT / name, root)
    shutil.copytree(PROJECT / "src", root / "src", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "src/clozeline/params/defaults.yaml").unlink()
    (root / "src/clozeline/params/defaults.yaml").symlink_to("../../../params.yaml")
    return root


@pytest.fixture(scope="module")
def before(original: Path) -> Inputs:
    found = inputs_of(original)
    assert found.keys() == STAGES
    return found


@pytest.fixture
def project(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "project")


def inputs_of(root: Path) -> Inputs:
    """Complete the params as stage `params` does, with the code in `root`, and return what each other stage reads."""
    script = [sys.executable, "-m", "clozeline", "params", "--out", "data/params.yaml"]
    subprocess.run(script, cwd=root, env={**os.environ, "PYTHONPATH": str(root / "src")}, check=True)
    found = {}
    with Repo(str(root)) as repo, lock_repo(repo):
        for stage in repo.index.stages:
            stage.save_deps(allow_missing=True)
            found[stage.name] = {str(dep): dep.hash_info.value for dep in stage.deps}
    del found["params"]
    return found


def runs_again(root: Path, before: Inputs) -> set[str]:
    after = inputs_of(root)
    return {name for name in STAGES if after[name] != before[name]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("edits", "stages"),
    [
        (
            {
                "    encoder: encoder": "    encoder: encoder\n    second: encoder",
                "\nfinetune:": f"\nfinetune:{MORE}",
                "imports: {}": "imports: {}\nrecipes: {low-resource: {steps: 9}}",
                "  num_workers: 0": "  num_workers: 4",
                "  checkpoint_every_steps: 250": "  checkpoint_every_steps: 100",
                "    max_length: 128\n": "    max_length: 100\n",
                "  max_documents: null": "  max_documents: 9",
            },
            set(),
        ),
        ({"  discriminator_weight: 50.0": "  discriminator_weight: 40.0"}, {FIRST}),
        ({"imports: {}": "imports: {}\nrecipes: {measured: {steps: 10}}"}, {FIRST}),
        ({"    test_fraction: 0.3 ": "    test_fraction: 0.25 "}, TASKS),
        ({"    max_classes: 20": "    max_classes: 10"}, {"finetune@library"}),
        ({"    min_agreement: 0.97": "    min_agreement: 0.98"}, EXPORTS),
        ({"    - int7 exact 0.25\n": ""}, EXPORTS),
        ({"seed: ": "seed: 1"}, STAGES - EXPORTS - {"snapshot", "tokenize"}),
    ],
)
def test_an_edit_of_params_reruns_only_the_affected_stages(
    project: Path, before: Inputs, edits: Mapping[str, str], stages: set[str]
) -> None:
    text = (project / "params.yaml").read_text(encoding="utf-8")
    for line, edited in edits.items():
        assert line in text
        text = text.replace(line, edited, 1)
    (project / "params.yaml").write_text(text, encoding="utf-8")
    assert runs_again(project, before) == stages


TASKS_OF_PRESETS = """
finetune:
  one: {preset: sst2, data: corpus.lock}
  two: {preset: sst2, data: corpus.lock, text_field: body}
  other: {preset: cola, data: corpus.lock}
"""


@pytest.mark.parametrize("is_own", [False, True], ids=["of the package", "of the project"])
def test_an_edit_of_a_preset_reruns_only_the_tasks_that_use_it(project: Path, is_own: bool) -> None:
    params, presets = project / "params.yaml", project / "src/clozeline/params/presets.yaml"
    params.write_text(params.read_text("utf-8").replace("\nfinetune:\n", TASKS_OF_PRESETS), encoding="utf-8")
    before = inputs_of(project)
    if is_own:
        params.write_text(f"{params.read_text('utf-8')}\npresets: {{sst2: {{text_field: words}}}}\n", "utf-8")
    else:
        text, usual = presets.read_text(encoding="utf-8"), "subset: sst2}, text_field: sentence"
        assert usual in text
        presets.write_text(text.replace(usual, "subset: sst2}, text_field: words"), encoding="utf-8")
    after = inputs_of(project)
    assert {name for name in after if after[name] != before[name]} == {"finetune@one"}


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "stages"), [("measured", {FIRST}), ("low-resource", set())])
def test_an_edit_of_a_recipe_reruns_pre_training_if_it_is_chosen(
    project: Path, before: Inputs, recipe: str, stages: set[str]
) -> None:
    path = project / "src/clozeline/params/recipes.yaml"
    text = re.sub(rf"(?m)^{recipe}:.*\n(  .*\n)*", f"{recipe}: {{steps: 10}}\n", path.read_text("utf-8"))
    path.write_text(text, encoding="utf-8")
    assert runs_again(project, before) == stages


@pytest.mark.slow
@pytest.mark.parametrize(
    ("files", "stages"),
    [
        (["serving/zero_shot.py", "records/published.py", "params/reading.py"], set()),
        (["records/snapshot.py"], {"snapshot", "preprocess"}),
        (["encoder/layers.py"], {FIRST, "evaluate"} | TASKS | EXPORTS),
        (["language/objectives.py"], {FIRST, "evaluate"}),
        (["training/curves.py"], {FIRST} | TASKS),
        (["records/finetune/scored_items.py"], TASKS | EXPORTS),
        (["tokenizing/tokenizer/folder.py", "tasks/heads.py"], {"tokenize"} | TASKS),
    ],
)
def test_an_edit_of_the_code_reruns_only_the_affected_stages(
    project: Path, before: Inputs, files: list[str], stages: set[str]
) -> None:
    for file in files:
        path = project / "src/clozeline" / file
        path.write_bytes(path.read_bytes() + b"# an edit\n")
    assert runs_again(project, before) == stages


def test_new_labels_rerun_only_the_fine_tuning_of_their_task(project: Path, before: Inputs) -> None:
    params = (project / "params.yaml").read_text(encoding="utf-8")
    (project / "params.yaml").write_text(params.replace("\nfinetune:", f"\nfinetune:{MORE}", 1), encoding="utf-8")
    (project / "more.conll").write_text("Ada B-PER\n")
    labelled = inputs_of(project)
    (project / "more.conll").write_text("Ada B-PER\nis O\n")
    after = inputs_of(project)
    assert {name for name in after if after[name] != labelled[name]} == {"finetune@more"}
    assert runs_again(project, before) == set()
