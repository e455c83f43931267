"""Claim: two nodes that share a stage write the figures of one process, to 1e-5."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clozeline.params.pretraining import PretrainParams
from tests.make.servers import held_ports
from tests.make.texts import write_clean_text
from tests.make.topics import params, topic_records
from tests.stages import in_two_processes
from tests.stages.test_evaluate import PARAMS, encoder

SCRIPT = Path(in_two_processes.__file__)
RATE = 1e-4
"""The better one of those that the task tries, but not the first."""


def write_cases(folder: Path, inputs: dict[str, Path]) -> None:
    """Write the cases that `run` runs, with outputs in `folder`."""
    folder.mkdir()
    texts = {"training_text": inputs["texts"], "validation_text": inputs["texts"], "tokens": inputs["tokens"]}
    out = {"metrics": folder / "evaluate.json", "plots": folder / "plots", "examples": folder / "examples"}
    evaluate = {
        "stage": "evaluate",
        "class": "EvaluateParams",
        "params": PARAMS.model_dump(),
        "paths": {**texts, **out, "encoder": inputs["pair"], "tokenizer": inputs["tokenizer"]},
        "others": {"seed": 1, "family": "electra"},
    }
    files = {"out": "model", "metrics": "finetune.json", "curve": "curve.csv", "validation": "validation.csv"}
    files |= {name: name for name in ("confusion", "classes", "examples", "work")}
    finetune = {
        "stage": "finetune",
        "class": "ClassificationParams",
        # 15 rows of a batch are not divisible by two; at these rates Adam does not amplify rounding.
        "params": params(
            epochs=2,
            batch_size=15,
            optimizer=params().optimizer.model_dump() | {"learning_rate": RATE},
            rate_factors=[10.0, 1.0],
        ),
        "paths": {
            **{name: folder / "tuned" / file for name, file in files.items()},
            **{"encoder": inputs["encoder"], "data": inputs["data"], "pretraining_text": inputs["texts"]},
        },
        "others": {"seed": 7, "task": "small"},
    }
    finetune["params"] = finetune["params"].model_dump()
    (folder / "cases.json").write_text(json.dumps([evaluate, finetune], default=str), encoding="utf-8")


@pytest.fixture
def inputs(
    tiny_pretraining: PretrainParams, tiny_tokens: Path, tiny_tokenizer: Path, small_encoder: Path, tmp_path: Path
) -> dict[str, Path]:
    family = tiny_pretraining.model.model_copy(update={"family": "electra"})
    pair = encoder(
        tiny_pretraining.model_copy(update={"objective": "rtd", "model": family}), tiny_tokenizer, tmp_path / "pair"
    )
    write_clean_text(tmp_path / "texts.parquet", ["a text about something else"])
    pq.write_table(pa.Table.from_pylist(topic_records(60)), tmp_path / "data.parquet")
    named = {"pair": pair, "tokens": tiny_tokens, "tokenizer": tiny_tokenizer, "encoder": small_encoder}
    return {**named, "texts": tmp_path / "texts.parquet", "data": tmp_path / "data.parquet"}


def figures_of(file: Path) -> dict[str, Any]:
    figures = json.loads(file.read_text())
    scores = {f"score at {rate}": score for rate, score in figures.get("rate_scores", {}).items()}
    return scores | {name: value for name, value in figures.items() if isinstance(value, int | float)}


def column(file: Path, name: str) -> list[float]:
    with file.open(newline="") as stream:
        return [float(row[name]) for row in csv.DictReader(stream)]


def agent(port: int, folder: Path) -> "subprocess.Popen[str]":
    """Start the torchrun of a node with one process."""
    meeting = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=stages"]
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *meeting, str(SCRIPT), str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_two_nodes_evaluate_and_fine_tune_like_one_process(inputs: dict[str, Path], tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        write_cases(folder, inputs)
    with held_ports() as free_port:
        port = free_port()
        agents = [agent(port, two) for _ in range(2)]
        try:
            told = "".join(process.communicate(timeout=600)[0] for process in agents)
        finally:
            for process in agents:
                process.terminate()
    assert [process.returncode for process in agents] == [0, 0], told
    in_two_processes.run(one)
    for name in ("evaluate.json", "tuned/finetune.json"):
        alone, together = figures_of(one / name), figures_of(two / name)
        assert len(alone) > 10
        assert together == pytest.approx(alone, rel=1e-5)
    assert together["learning_rate"] == RATE
    assert {"score at 0.001", "score at 0.0001"} <= set(together)
    for file, name in (("curve.csv", "loss"), ("validation.csv", "validation_score")):
        alone, together = (column(folder / "tuned" / file, name) for folder in (one, two))
        assert together == pytest.approx(alone, rel=1e-5)
