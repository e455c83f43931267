"""Claim: by DVC's own reading of dvc.yaml, an edit re-runs exactly the stages whose result it can change."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from dvc.repo import Repo, lock_repo

from tests.conftest import PROJECT

FIRST = "pretrain"
OWN = """
finetune:
  tags: {kind: tagging, data: more.conll}
  one: {preset: sst2, data: corpus.lock}
  two: {preset: sst2, data: corpus.lock, text_field: body}
  other: {preset: cola, data: corpus.lock}
"""
TASKS = {f"finetune@{name}" for name in ("library", "docsearch", "tags", "one", "two", "other")}
EXPORTS = {"export@encoder", "export@library", "export@docsearch"}
STAGES = {"snapshot", "preprocess", "tokenize", FIRST, "evaluate"} | TASKS | EXPORTS
PARAMS, LABELS = "params.yaml", "more.conll"
EDIT = ("", "# an edit\n")
# Stage → dep → hash of the dep, or values of the params.
Inputs = Mapping[str, Mapping[str, Any]]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """dvc.yaml, params.yaml with more tasks, and the code, without data."""
    root = tmp_path_factory.mktemp("original")
    Repo.init(str(root), no_scm=True).close()
    shutil.copy(PROJECT / "dvc.yaml", root)
    text = (PROJECT / PARAMS).read_text(encoding="utf-8")
    (root / PARAMS).write_text(text.replace("\nfinetune:\n", OWN), encoding="utf-8")
    (root / LABELS).write_text("Ada B-PER\n")
    shutil.copytree(PROJECT / "src", root / "src", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "src/clozeline/params/defaults.yaml").unlink()
    (root / "src/clozeline/params/defaults.yaml").symlink_to("../../../params.yaml")
    return root


@pytest.fixture(scope="module")
def before(original: Path) -> Inputs:
    found = inputs_of(original)
    assert found.keys() == STAGES
    return found


def inputs_of(root: Path) -> Inputs:
    """Complete the params as stage `params` does, with the code in `root`, and return what each other stage reads."""
    script = [sys.executable, "-m", "clozeline", "params", "--out", "data/params.yaml"]
    subprocess.run(script, cwd=root, env={**os.environ, "PYTHONPATH": str(root / "src")}, check=True)
    with Repo(str(root)) as repo, lock_repo(repo):
        for stage in repo.index.stages:
            stage.save_deps(allow_missing=True)
        found = {stage.name: {str(dep): dep.hash_info.value for dep in stage.deps} for stage in repo.index.stages}
    del found["params"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("edits", "stages"),
    [
        (
            [
                (PARAMS, "    encoder: encoder", "    encoder: encoder\n    second: encoder"),
                (PARAMS, "\nfinetune:", "\nfinetune:\n  more: {kind: tagging, data: corpus.lock}"),
                (PARAMS, "  num_workers: 0", "  num_workers: 4"),
                (PARAMS, "  checkpoint_every_steps: 250", "  checkpoint_every_steps: 100"),
                (PARAMS, "  max_documents: null", "  max_documents: 9"),
                ("params/recipes.yaml", "{head_dropout: 0.15}", "{head_dropout: 0.2}"),
                *(("serving/zero_shot.py", *EDIT), ("records/published.py", *EDIT), ("params/reading.py", *EDIT)),
            ],
            set(),
        ),
        ([(PARAMS, "  discriminator_weight: 50.0", "  discriminator_weight: 40.0")], {FIRST}),
        ([("params/recipes.yaml", "measured: {}", "measured: {steps: 10}")], {FIRST}),
        ([("params/presets.yaml", "subset: sst2}, text_field: sentence", "subset: sst2}")], {"finetune@one"}),
        (  # these two state their own
            [(PARAMS, "    max_length: 128\n", "    max_length: 100\n")],
            TASKS - {"finetune@library", "finetune@docsearch"},
        ),
        ([(PARAMS, "    max_classes: 20", "    max_classes: 10")], {"finetune@library"}),
        ([(PARAMS, "    min_agreement: 0.97", "    min_agreement: 0.98")], EXPORTS),
        ([(PARAMS, "seed: ", "seed: 1")], STAGES - EXPORTS - {"snapshot", "tokenize"}),
        ([(LABELS, "Ada", "Bob")], {"finetune@tags"}),
        ([("records/snapshot.py", *EDIT)], {"snapshot", "preprocess"}),
        ([("encoder/layers.py", *EDIT)], {FIRST, "evaluate"} | TASKS | EXPORTS),
        ([("language/objectives.py", *EDIT)], {FIRST, "evaluate"}),
        ([("training/curves.py", *EDIT)], {FIRST} | TASKS),
        ([("records/finetune/scored_items.py", *EDIT)], TASKS | EXPORTS),
        ([("tokenizing/tokenizer/folder.py", *EDIT), ("tasks/heads.py", *EDIT)], {"tokenize"} | TASKS),
    ],
)
def test_an_edit_reruns_only_the_affected_stages(
    original: Path, tmp_path: Path, before: Inputs, edits: Sequence[tuple[str, str, str]], stages: set[str]
) -> None:
    project = shutil.copytree(original, tmp_path / "project", symlinks=True)
    for file, old, new in edits:
        path = project / ("" if file in (PARAMS, LABELS) else "src/clozeline") / file
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new, 1), encoding="utf-8")
    after = inputs_of(project)
    assert {name for name in before if after[name] != before[name]} == stages
