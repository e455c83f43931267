"""Claim: the real dvc.yaml makes the same dvc.lock in any folder, re-runs what a change needs, and the flow agrees."""

import json
import os
import random
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

from clozeline.artifacts.lock import Lock

PROJECT = Path(__file__).parents[2]
FILES = ("dvc.yaml", ".dvc/config", ".dvc/.gitignore", ".dvcignore", ".gitignore", "requirements.lock", "start.lock")
SYLLABLES = ["ba", "de", "fi", "go", "lu", "ma", "ne", "pi", "ro", "su", "ta", "ve", "wi", "zo", "ka", "le"]
TOPICS = ("baking", "mining", "sailing")
NUM_SENTENCES = 450
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
        "model": {
            "size": None,
            "hidden_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 32,
            "max_position_embeddings": 64,
        },
        "max_length": 32,
        "batch_tokens": 512,
        "schedule": {"warmup_steps": 5},
        "steps": 60,
        "log_every_steps": 10,
        "checkpoint_every_steps": 30,
        "num_threads": 1,
    },
    "evaluate": {"num_folds": 3, "max_length": 32, "num_examples": 3, "num_pseudo_documents": 4},
    "finetune_defaults": {"shared": {"epochs": 1, "num_threads": 1}},
    "finetune": {"library": {"max_length": 32}},
    "export": {"num_agreement_texts": 8},
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

    def run(self, *command: str) -> str:
        (output,) = all_said(self.start(*command))
        return output

    @property
    def lock(self) -> bytes:
        return (self.root / "dvc.lock").read_bytes()

    def made_files(self) -> list[Path]:
        """Return every file of every output that dvc.lock names."""
        outs = [
            self.root / out.path for stage in Lock.read(self.root / "dvc.lock").stages.values() for out in stage.outs
        ]
        return [file for out in outs for file in ([out] if out.is_file() else out.rglob("*")) if file.is_file()]

    def set_knob(self, section: str, knob: str, value: object) -> None:
        write_params(self.root, {section: {knob: value}}, source=self.root / "params.yaml")


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
    for name in FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(PROJECT / name, root / name)
    shutil.copytree(PROJECT / "src", root / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    (root / ".dvc" / "config.local").write_text(f"[core]\n    site_cache_dir = {root.parent / 'site'}\n")
    write_params(root, SHRUNK, source=PROJECT / "params.yaml")
    sentences = root / "texts" / "sentences.jsonl"
    sentences.parent.mkdir(parents=True)
    sentences.write_text("".join(json.dumps(record) + "\n" for record in toy_language()))
    for arguments in (["init", "--quiet"], ["config", "user.name", "Test"], ["config", "user.email", "test@localhost"]):
        subprocess.run(["git", *arguments], cwd=root, check=True)
    return Line(root)


def write_params(root: Path, changes: Mapping[str, Any], source: Path) -> None:
    yaml = YAML()
    params = yaml.load(source)
    # The only task that works with the output of any source.
    params["finetune"] = {"library": params["finetune"]["library"]}
    params["export"]["models"] = {"encoder": "encoder", "library": "finetuned/library"}
    merge(params, changes)
    yaml.dump(params, root / "params.yaml")


def merge(tree: Any, changes: Mapping[str, Any]) -> None:
    for key, value in changes.items():
        assert key in tree, f"params.yaml has no {key}"
        if isinstance(value, Mapping):
            merge(tree[key], value)
        else:
            tree[key] = value


def toy_language() -> list[dict[str, str]]:
    """Return texts of three subject-verb-object clauses; each topic has its own nouns, and all share the verbs."""
    draw = random.Random(5)
    words = [first + second + third for first in SYLLABLES for second in SYLLABLES for third in ("n", "sh", "r")]
    draw.shuffle(words)
    nouns = {topic: words[60 * place : 60 * place + 60] for place, topic in enumerate(TOPICS)}
    verbs = words[-40:]
    records = []
    for number in range(NUM_SENTENCES):
        topic = TOPICS[number % len(TOPICS)]
        clauses = [
            f"the {draw.choice(nouns[topic])} {draw.choice(verbs)} a {draw.choice(nouns[topic])}" for _ in range(3)
        ]
        records.append({"text": f"{' and '.join(clauses)}.", "topic": topic})
    return records


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> tuple[Line, Line]:
    """Two folders of different names, each with a cache of its own, after `dvc repro` in both at the same time."""
    first, second = (make_line(tmp_path_factory.mktemp("line") / name) for name in ("first", "ein Ordner für zwei"))
    all_said(first.start("dvc", "repro"), second.start("dvc", "repro"))
    return first, second


def test_every_stage_runs_and_writes_its_metrics_and_package(lines: tuple[Line, Line]) -> None:
    for line in lines:
        stages = YAML(typ="safe").load(line.lock)["stages"]
        assert set(stages) == {
            *("snapshot", "preprocess", "tokenize", "pretrain", "evaluate", "finetune@library"),
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
    assert first.lock == second.lock


def test_no_output_contains_the_path_of_its_project(lines: tuple[Line, Line]) -> None:
    for line in lines:
        files = line.made_files()
        assert len(files) > 20
        place = str(line.root.parent).encode()
        assert [file.name for file in [*files, line.root / "dvc.lock"] if place in file.read_bytes()] == []


def test_changing_a_knob_reruns_one_stage_and_reverting_it_restores_the_outputs(lines: tuple[Line, Line]) -> None:
    line, before = lines[0], lines[0].lock
    line.set_knob("evaluate", "num_folds", 2)
    assert RUNNING.findall(line.run("dvc", "repro")) == ["evaluate"]
    assert line.lock != before
    line.set_knob("evaluate", "num_folds", SHRUNK["evaluate"]["num_folds"])
    output = line.run("dvc", "repro")
    assert (RUNNING.findall(output), RESTORED.findall(output)) == ([], ["evaluate"])
    assert line.lock == before


def test_the_flow_finds_outputs_of_dvc_repro_unchanged_even_without_git(lines: tuple[Line, Line]) -> None:
    line, before = lines[1], lines[1].lock
    shutil.rmtree(line.root / ".git")
    output = line.run("clozeline", "run", "--no-release")
    for name in Lock.read(line.root / "dvc.lock").stages:
        assert re.search(rf"{name}\s+│\s+unchanged", output), output
    assert "✓ All" in (line.root / "reports" / "report.html").read_text()
    assert line.lock == before
