"""Claim: two nodes that share a stage write the figures of one process, to 1e-5."""

import json
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clozeline.evaluation import groups
from clozeline.params.pretraining import PretrainParams
from clozeline.stages import evaluate, finetune
from tests.make.models import PROJECT
from tests.make.servers import held_ports
from tests.make.texts import write_clean_text
from tests.make.topics import params, topic_records
from tests.stages.test_evaluate import PARAMS, encoder

# The better one of those that the task tries, but not the first.
RATE = 1e-4


def run(inputs: Path, folder: Path) -> None:
    """Run both stages on the paths in the file `inputs`, with outputs in `folder`; torchrun runs it as `__main__`."""
    given = {name: Path(path) for name, path in json.loads(inputs.read_text()).items()}
    # 15 rows of a batch are not divisible by two; at these rates Adam does not amplify rounding.
    optimizer = params().optimizer.model_dump() | {"learning_rate": RATE}
    task = params(epochs=2, batch_size=15, optimizer=optimizer, rate_factors=[10.0, 1.0])
    with patch.object(groups, "BATCH_TOKENS", 64):  # so that both processes get batches, one of them one more
        evaluate.run(
            PARAMS,
            seed=1,
            family="electra",
            encoder=given["pair"],
            tokens=given["tokens"],
            tokenizer=given["tokenizer"],
            training_text=given["texts"],
            validation_text=given["texts"],
            metrics=folder / "evaluate.json",
            plots=folder / "plots",
            examples=folder / "examples",
        )
    tables = ("curve", "validation", "confusion", "classes", "examples", "work")
    finetune.run(
        task,
        seed=7,
        task="small",
        encoder=given["encoder"],
        data=given["data"],
        pretraining_text=given["texts"],
        out=folder / "model",
        metrics=folder / "finetune.json",
        **{name: folder / "tuned" / name for name in tables},
    )


@pytest.fixture
def inputs(
    tiny_pretraining: PretrainParams, tiny_tokens: Path, tiny_tokenizer: Path, small_encoder: Path, tmp_path: Path
) -> Path:
    family = tiny_pretraining.model.model_copy(update={"family": "electra"})
    detecting = tiny_pretraining.model_copy(update={"objective": "rtd", "model": family})
    pair = encoder(detecting, tiny_tokenizer, tmp_path / "pair")
    made = {"texts": tmp_path / "texts.parquet", "data": tmp_path / "data.parquet"}
    write_clean_text(made["texts"], ["a text about something else"])
    pq.write_table(pa.Table.from_pylist(topic_records(60)), made["data"])
    paths = {**made, "pair": pair, "tokens": tiny_tokens, "tokenizer": tiny_tokenizer, "encoder": small_encoder}
    (tmp_path / "inputs.json").write_text(json.dumps(paths, default=str))
    return tmp_path / "inputs.json"


def agent(port: int, *arguments: Path) -> "subprocess.Popen[str]":
    """Start the torchrun of a node with one process."""
    meeting = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=stages"]
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *meeting, "-m", __name__, *map(str, arguments)],
        cwd=PROJECT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_two_nodes_evaluate_and_fine_tune_like_one_process(inputs: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    with held_ports() as free_port:
        port = free_port()
        agents = [agent(port, inputs, two) for _ in range(2)]
        try:
            told = "".join(process.communicate(timeout=600)[0] for process in agents)
        finally:
            for process in agents:
                process.terminate()
    assert [process.returncode for process in agents] == [0, 0], told
    run(inputs, one)
    for name in ("evaluate.json", "finetune.json"):
        alone, together = (json.loads((folder / name).read_text()) for folder in (one, two))
        assert together.pop("rate_scores", {}) == pytest.approx(alone.pop("rate_scores", {}), rel=1e-5)
        figures = {key: value for key, value in alone.items() if isinstance(value, int | float)}
        assert len(figures) > 10
        assert {key: together[key] for key in figures} == pytest.approx(figures, rel=1e-5)
    assert together["learning_rate"] == RATE
    for file, name in (("curve", "loss"), ("validation", "validation_score")):
        alone, together = (pd.read_csv(folder / "tuned" / file)[name].tolist() for folder in (one, two))
        assert together == pytest.approx(alone, rel=1e-5)


if __name__ == "__main__":
    run(*map(Path, sys.argv[1:]))
