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

import psutil
import pytest
from ruamel.yaml import YAML

from clozeline.records.record import Lock
from clozeline.versions.graph import read_stage_graph
from tests.cluster.raylets import Cluster, cluster_of_two, kill_raylet
from tests.make.processes import is_alive, wait_for
from tests.make.projects import TINY_EVALUATION, TINY_MODEL, copy_project, toy_language, write_params, write_sentences

TASKS = ("library",)  # the only one that works with the output of any source
# Stages that run at the same time on a cluster.
BESIDE = ("evaluate", "finetune@library")
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


IMPORTS = """
import importlib, sys
for stage in ("snapshot", "preprocess", "tokenize", "pretrain", "evaluate", "finetune"):
    importlib.import_module(f"clozeline.stages.{stage}")
late = {"accelerate", "mlflow", "prefect", "scipy", "sklearn"}
late |= {"transformers.modeling_utils", "torch.distributed.tensor"}
print(sorted(late & set(sys.modules)))
"""


@dataclass(frozen=True)
class Line:
    """A copy of this project with a toy language and tiny models, in a folder of its own."""

    root: Path

    def start(self, *command: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=self.root,
            env=environment(self.root) | variables | {"PYTHONPATH": str(self.root / "src")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *command: str) -> str:
        (output,) = all_said(self.start(*command))
        return output

    @property
    def lock(self) -> bytes:
        return (self.root / "dvc.lock").read_bytes()

    @property
    def stages(self) -> dict[str, Any]:
        """What dvc.lock records of each stage."""
        stages: dict[str, Any] = YAML(typ="safe").load(self.lock)["stages"]
        return stages

    def made_files(self) -> list[Path]:
        """Return every file of every output that dvc.lock names."""
        outs = [
            self.root / out.path for stage in Lock.read(self.root / "dvc.lock").stages.values() for out in stage.outs
        ]
        return [file for out in outs for file in ([out] if out.is_file() else out.rglob("*")) if file.is_file()]

    def forget(self, *names: str) -> None:
        """Take stages out of dvc.lock and out of the run cache, with their outputs, as if they had never run."""
        shutil.rmtree(self.root / ".dvc" / "cache" / "runs")
        yaml = YAML()
        lock = yaml.load(self.lock)
        for out in (self.root / out["path"] for name in names for out in lock["stages"].pop(name)["outs"]):
            shutil.rmtree(out) if out.is_dir() else out.unlink()
        with (self.root / "dvc.lock").open("w") as file:
            yaml.dump(lock, file)

    def set_pseudo_documents(self, number: object) -> None:
        changes = {"evaluate": {"num_pseudo_documents": number}}
        write_params(self.root, changes, tasks=TASKS, source=self.root / "params.yaml")


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
    for arguments in (["init", "--quiet"], ["config", "user.name", "Test"], ["config", "user.email", "test@localhost"]):
        subprocess.run(["git", *arguments], cwd=root, check=True)
    return Line(root)


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> tuple[Line, Line]:
    """Two folders of different names, each with a cache of its own, after `dvc repro` in both at the same time.

    The second does without exports: tests/stages/test_export.py repeats one elsewhere.
    """
    first, second = (make_line(tmp_path_factory.mktemp("line") / name) for name in ("ein Ordner für zwei", "second"))
    all_said(first.start("dvc", "repro"), second.start("dvc", "repro", *BESIDE))
    return first, second


def test_stages_import_rarely_used_packages_only_when_needed() -> None:
    """Each import is time that every run of the stage waits."""
    imported = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True)
    assert imported.stdout.strip() == "[]"


def test_every_stage_runs_and_writes_its_metrics_and_package(lines: tuple[Line, Line]) -> None:
    line = lines[0]
    assert set(line.stages) == {
        *("params", "snapshot", "preprocess", "tokenize", "pretrain", "evaluate", "finetune@library"),
        *("export@encoder", "export@library"),
    }
    metrics = {file.relative_to(line.root).as_posix() for file in (line.root / "metrics").rglob("*.json")}
    assert metrics == {
        *(f"metrics/{name}.json" for name in ("preprocess", "tokenize", "pretrain", "evaluate")),
        *("metrics/finetune/library.json", "metrics/export/encoder.json", "metrics/export/library.json"),
    }
    for package in ("encoder", "library"):
        assert (line.root / "dist" / package / "manifest.json").is_file()


def test_two_clean_runs_give_the_same_lock(lines: tuple[Line, Line]) -> None:
    first, second = lines
    wanted = {name: stage for name, stage in first.stages.items() if not name.startswith("export@")}
    assert json.dumps(second.stages) == json.dumps(wanted), "the same hashes in the same order"


def test_stages_on_two_raylets_give_the_same_lock_also_when_one_is_killed(
    lines: tuple[Line, Line], tmp_path: Path
) -> None:
    line = Line(tmp_path / "on a cluster")
    shutil.copytree(lines[0].root, line.root, symlinks=True)
    line.forget(*BESIDE)
    with cluster_of_two(tmp_path / "raylets.log", code=line.root / "src") as cluster:
        beside = [line.start("clozeline.versions.reproduce", name, **cluster.environment) for name in BESIDE]
        is_running = wait_for(lambda: all(stage_on(cluster, name) for name in BESIDE), 400)
        assert is_running, all_said(*beside)
        nodes = [node for name in BESIDE for node in stage_on(cluster, name)]
        kill_raylet(cluster.nodes[1])  # without the head there is no cluster
        said = all_said(*beside)
    assert len(set(nodes)) == 2, said
    assert "its node ended (attempt 1 of 4)" in said[nodes.index(cluster.nodes[1])]
    assert line.stages == lines[0].stages


def stage_on(cluster: Cluster, name: str) -> list[psutil.Process]:
    """Return the node that runs a stage, if one does."""
    told = ["stage", name.partition("@")[0]]
    return [
        node
        for node in cluster.nodes
        if any(one.cmdline()[3:5] == told for one in node.children(recursive=True) if is_alive(one.pid))
    ]


def test_no_output_contains_the_path_of_its_project(lines: tuple[Line, Line]) -> None:
    for line in lines:
        files = line.made_files()
        assert len(files) > 20
        place = str(line.root.parent).encode()
        assert [file.name for file in [*files, line.root / "dvc.lock"] if place in file.read_bytes()] == []


def test_changing_a_knob_reruns_one_stage_and_reverting_it_restores_the_outputs(lines: tuple[Line, Line]) -> None:
    line, before = lines[0], lines[0].lock
    line.set_pseudo_documents(2)
    assert RUNNING.findall(line.run("dvc", "repro")) == ["params", "evaluate"]
    assert line.lock != before
    line.set_pseudo_documents(SHRUNK["evaluate"]["num_pseudo_documents"])
    output = line.run("dvc", "repro")
    assert (RUNNING.findall(output), RESTORED.findall(output)) == ([], ["params", "evaluate"])
    assert line.lock == before


def test_the_flow_finds_outputs_of_dvc_repro_unchanged_even_without_git(lines: tuple[Line, Line]) -> None:
    """The flow runs what its graph calls changed."""
    line = lines[0]
    shutil.rmtree(line.root / ".git")
    graph = read_stage_graph(line.root)
    assert {node.name for node in graph} == set(line.stages)
    assert [node.name for node in graph if node.is_changed] == []
