"""Claim: the real dvc.yaml makes the same dvc.lock in any folder, re-runs what a change needs, and the flow agrees."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from clozeline.versions.graph import read_stage_graph
from tests.make.projects import TINY_EVALUATION, TINY_MODEL, copy_project, toy_language, write_params, write_sentences

TASKS = ("library",)  # the only one that works with the output of any source
RUNNING = re.compile(r"^Running stage '(.+)':", re.MULTILINE)
RESTORED = re.compile(r"^Stage '(.+)' is cached - skipping run", re.MULTILINE)
SHRUNK: Mapping[str, Any] = {
    "preprocess": {
        "source": {"kind": "files", "path": "texts/sentences.jsonl", "label_field": "topic"},
        "min_characters": 20,
        "validation_fraction": 0.1,
        "holdout_fraction": 0.4,
    },
    "tokenize": {"vocab_size": 200},
    "pretrain": {
        "model": TINY_MODEL,
        "max_length": 32,
        "batch_tokens": 512,
        "schedule": {"warmup_fraction": 0.08},
        "steps": 60,
        "log_every_steps": 10,
        "checkpoint_every_steps": 30,
        "num_threads": 1,
    },
    "evaluate": TINY_EVALUATION,
    "finetune_defaults": {"shared": {"epochs": 1, "num_threads": 1}},
    "finetune": {"library": {"max_length": 32, "train_length": 16, "epochs": 1}},
    "export": {"num_agreement_texts": 8, "ladder": []},
}


@dataclass(frozen=True)
class Line:
    """A copy of this project with a toy language and tiny models, in a folder of its own."""

    root: Path

    def start(self, *command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=self.root,
            env=environment(self.root),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @property
    def lock(self) -> bytes:
        return (self.root / "dvc.lock").read_bytes()

    @property
    def stages(self) -> dict[str, Any]:
        """What dvc.lock records of each stage."""
        stages: dict[str, Any] = YAML(typ="safe").load(self.lock)["stages"]
        return stages

    def reproduced_with(self, num_pseudo_documents: object) -> str:
        changes = {"evaluate": {"num_pseudo_documents": num_pseudo_documents}}
        write_params(self.root, changes, tasks=TASKS, source=self.root / "params.yaml")
        (output,) = all_said(self.start("dvc", "repro"))
        return output


def all_said(*processes: subprocess.Popen[str]) -> list[str]:
    """Return the output of each process; all have ended before any exit code is checked."""
    outputs = [process.communicate()[0] for process in processes]
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output
    return outputs


def environment(root: Path) -> dict[str, str]:
    """Return our environment without other tests' servers; `python` is this interpreter, `clozeline` that of `root`."""
    others = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "PREFECT_", "DVC_"))}
    return {
        **others,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(root / "src"),
        "DVC_NO_ANALYTICS": "1",
    }


def make_line(root: Path) -> Line:
    copy_project(root)
    write_params(root, SHRUNK, tasks=TASKS)
    write_sentences(root, toy_language(450))
    for arguments in ("init --quiet", "config user.name Test", "config user.email test@localhost"):
        subprocess.run(["git", *arguments.split()], cwd=root, check=True)
    return Line(root)


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> tuple[Line, Line]:
    """Two folders of different names, each with a cache of its own, after `dvc repro` in both at the same time.

    The second does without exports: tests/stages/test_export.py repeats one elsewhere.
    """
    first, second = (make_line(tmp_path_factory.mktemp("line") / name) for name in ("ein Ordner für zwei", "second"))
    all_said(first.start("dvc", "repro"), second.start("dvc", "repro", "evaluate", "finetune@library"))
    return first, second


def test_two_clean_runs_of_every_stage_give_the_same_lock_and_outputs_without_their_path(
    lines: tuple[Line, Line],
) -> None:
    first, second = lines
    without_exports = {name: stage for name, stage in first.stages.items() if not name.startswith("export@")}
    assert json.dumps(second.stages) == json.dumps(without_exports), "the same hashes in the same order"
    stages = ("snapshot", "preprocess", "tokenize", "pretrain", "evaluate", "finetune@library")
    assert set(first.stages) == {"params", *stages, "export@encoder", "export@library"}
    metrics = {file.relative_to(first.root / "metrics").as_posix() for file in first.root.glob("metrics/**/*.json")}
    of_tasks = ("finetune/library", "export/encoder", "export/library")
    assert metrics == {f"{name}.json" for name in ("preprocess", "tokenize", "pretrain", "evaluate", *of_tasks)}
    assert all((first.root / "dist" / package / "manifest.json").is_file() for package in ("encoder", "library"))
    for line in lines:
        outs = [line.root / out["path"] for stage in line.stages.values() for out in stage["outs"]]
        files = [file for out in outs for file in (out, *out.rglob("*")) if file.is_file()]
        assert len(files) > 20
        place = str(line.root.parent).encode()
        assert [file.name for file in [*files, line.root / "dvc.lock"] if place in file.read_bytes()] == []


def test_changing_a_knob_reruns_one_stage_and_reverting_it_restores_what_the_flow_calls_unchanged(
    lines: tuple[Line, Line],
) -> None:
    line, before = lines[0], lines[0].lock
    assert RUNNING.findall(line.reproduced_with(2)) == ["params", "evaluate"]
    assert line.lock != before
    output = line.reproduced_with(SHRUNK["evaluate"]["num_pseudo_documents"])
    assert (RUNNING.findall(output), RESTORED.findall(output)) == ([], ["params", "evaluate"])
    assert line.lock == before
    shutil.rmtree(line.root / ".git")  # the flow works without it, and runs what its graph calls changed
    graph = read_stage_graph(line.root)
    assert {node.name for node in graph} == set(line.stages)
    assert [node.name for node in graph if node.is_changed] == []
