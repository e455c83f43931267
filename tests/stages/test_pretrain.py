import csv
import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from transformers import AutoModelForMaskedLM, AutoTokenizer

from clozeline.language.shards import TokenShards
from clozeline.params.pretraining import PretrainParams
from clozeline.records.reading.tokens import INFO_NAME, TokensInfo
from clozeline.stages import pretrain
from tests.conftest import TokensMaker, counting_documents
from tests.make.packages import card_in

PROJECT = Path(__file__).parents[2]


def run_stage(params: PretrainParams, tokens: Path, tokenizer: Path, folder: Path, **more: Any) -> None:
    pretrain.run(
        params,
        seed=1,
        tokens=tokens,
        tokenizer=tokenizer,
        out=folder / "encoder",
        metrics=folder / "metrics.json",
        curve=folder / "curve.csv",
        looks=folder / "looks.csv",
        timing=folder / "timing.csv",
        work=folder / "work",
        **more,
    )


def outputs(folder: Path) -> dict[str, bytes]:
    """Return the output files that DVC would hash, which excludes those with timings."""
    files = [*(folder / "encoder").iterdir(), folder / "metrics.json", folder / "curve.csv", folder / "looks.csv"]
    return {file.name: file.read_bytes() for file in files}


def test_the_encoder_loads_in_stock_transformers_and_checkpoints_are_gone(
    tiny_pretraining: PretrainParams, tiny_tokens: Path, tiny_tokenizer: Path, tmp_path: Path
) -> None:
    run_stage(tiny_pretraining, tiny_tokens, tiny_tokenizer, tmp_path)
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "encoder", local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "encoder", local_files_only=True)
    assert model.config.vocab_size == len(tokenizer)
    assert list((tmp_path / "work").iterdir()) == []


def test_metrics_and_curve_agree(
    tiny_pretraining: PretrainParams, tiny_tokens: Path, tiny_tokenizer: Path, tmp_path: Path
) -> None:
    run_stage(tiny_pretraining, tiny_tokens, tiny_tokenizer, tmp_path)
    with (tmp_path / "curve.csv").open(newline="") as file:
        points = list(csv.DictReader(file))
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert [int(point["step"]) for point in points] == [5, 10, 15, 20, 25, 30, 35, 40]
    assert metrics["steps"] == 40
    assert metrics["tokens"] == int(points[-1]["num_tokens"])
    assert metrics["last_training_loss_nats_per_token"] == float(points[-1]["loss"])
    assert metrics["last_training_accuracy"] == float(points[-1]["accuracy"]) > 0


def test_the_model_card_states_text_budget_and_limits(
    tiny_pretraining: PretrainParams, tiny_tokens: Path, tiny_tokenizer: Path, tmp_path: Path
) -> None:
    run_stage(tiny_pretraining, tiny_tokens, tiny_tokenizer, tmp_path)
    card = card_in(tmp_path / "encoder")
    assert card.facts == {"library_name": "transformers", "pipeline_tag": "fill-mask"}
    train = TokensInfo.of_folder(tiny_tokens).splits["train"]
    told = card.sections["Pre-training text"]
    assert f"| train | {train.num_documents:,} | {train.text_bytes:,} | {train.num_tokens:,} |" in told
    assert hashlib.sha256((tiny_tokens / INFO_NAME).read_bytes()).hexdigest() in told
    assert "40 optimizer steps" in card.sections["Pre-training"]
    assert "drawn at random" in card.sections["Base model"]
    assert f"{tiny_pretraining.max_length} tokens" in card.sections["Limits of the encoder"]


def test_the_card_of_a_causal_model_says_that_it_continues_texts(
    tiny_pretraining: PretrainParams, tiny_tokens: Path, tiny_tokenizer: Path, tmp_path: Path
) -> None:
    causal = tiny_pretraining.model_copy(update={"objective": "clm"})
    run_stage(causal, tiny_tokens, tiny_tokenizer, tmp_path)
    card = card_in(tmp_path / "encoder")
    assert card.facts["pipeline_tag"] == "text-generation"
    assert "fills no blanks" in card.sections["Limits of the encoder"]


@pytest.mark.parametrize(("steps", "epochs", "found"), [(1000, 2.0, 1), (5, 2.0, None), (None, 2.0, 1)])
def test_a_training_ends_at_the_smallest_of_its_budgets(
    steps: int | None,
    epochs: float,
    found: int | None,
    tiny_pretraining: PretrainParams,
    tiny_tokens: Path,
    tiny_tokenizer: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    run_stage(
        tiny_pretraining.model_copy(update={"steps": steps, "epochs": epochs}), tiny_tokens, tiny_tokenizer, tmp_path
    )
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["epochs"] == (found or 0)
    assert (metrics["steps"] == 5) is (found is None)
    assert ("because the text is short: `epochs: 2`" in caplog.text) is (steps == 1000)


def test_text_of_several_windows_is_read_ahead_and_trains_alike_with_and_without_workers(
    tiny_pretraining: PretrainParams,
    make_tokens: TokensMaker,
    tiny_tokenizer: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokens = make_tokens(counting_documents(2500, seed=0), counting_documents(40, seed=1))
    assert len(TokensInfo.of_folder(tokens).splits["train"].shards) == 6
    monkeypatch.setattr("clozeline.language.order.WINDOW_TOKENS", 20_000)
    read: list[int] = []
    monkeypatch.setattr(TokenShards, "read_ahead", lambda shards, ordinals: read.extend(ordinals))
    for folder, num_workers in (("alone", 0), ("workers", 2)):
        read.clear()
        params = tiny_pretraining.model_copy(update={"steps": None, "epochs": 1.0, "num_workers": num_workers})
        run_stage(params, tokens, tiny_tokenizer, tmp_path / folder)
        assert set(read) == set(range(6))
    assert outputs(tmp_path / "alone") == outputs(tmp_path / "workers")


@pytest.mark.parametrize(("stated", "told"), [({"license": "cc-by-4.0"}, "cc-by-4.0"), ({}, "not stated")])
def test_the_model_card_passes_on_the_licence_of_the_base_model(
    stated: dict[str, str],
    told: str,
    tiny_pretraining: PretrainParams,
    tiny_tokens: Path,
    tiny_tokenizer: Path,
    tmp_path: Path,
) -> None:
    base = tmp_path / "base"
    run_stage(tiny_pretraining, tiny_tokens, tiny_tokenizer, base)
    front = "\n".join(f"{name}: {fact}" for name, fact in {**stated, "base_model": "someone/encoder"}.items())
    (base / "encoder/README.md").write_text(f"---\n{front}\n---\n# Someone's\n", encoding="utf-8")
    unchanged = tiny_pretraining.model_copy(update={"start": str(base / "encoder"), "steps": 0})
    run_stage(unchanged, tiny_tokens, tiny_tokenizer, tmp_path)
    card = card_in(tmp_path / "encoder")
    assert {name: card.facts.get(name) for name in ("license", "base_model")} == {
        "license": stated.get("license"),
        "base_model": "someone/encoder",
    }
    assert f"Licence: {told}" in card.sections["Base model"]


def project_with(params: PretrainParams, folder: Path) -> Path:
    """Return a folder in which `clozeline stage pretrain` reads these params."""
    yaml = YAML(typ="safe")
    tree = yaml.load((PROJECT / "params.yaml").read_text(encoding="utf-8"))
    tree["pretrain"] = params.model_dump()
    tree["seed"] = 1
    tree["finetune"], tree["export"]["models"] = {}, {}  # their texts may be longer than this model reads
    folder.mkdir()
    with (folder / "params.yaml").open("w") as file:
        yaml.dump(tree, file)
    return folder


def start(folder: Path, tokens: Path, tokenizer: Path) -> "subprocess.Popen[bytes]":
    paths = {
        "tokens": tokens,
        "tokenizer": tokenizer,
        "start": "start.lock",
        "out": "encoder",
        "metrics": "metrics.json",
        "curve": "curve.csv",
        "looks": "looks.csv",
        "timing": "timing.csv",
        "work": "work",
    }
    arguments = [f"{key}={value}" for key, value in paths.items()]
    return subprocess.Popen([sys.executable, "-m", "clozeline", "stage", "pretrain", *arguments], cwd=folder)


def kill_at_checkpoint(process: "subprocess.Popen[bytes]", work: Path, name: str) -> None:
    """Kill the process once it has written this checkpoint or, if we see it too late, a later one."""
    deadline = time.monotonic() + 240
    while not any(checkpoint.name >= name for checkpoint in work.glob("*/step-*")):
        assert process.poll() is None, "the stage ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


def test_a_stage_killed_in_mid_run_ends_with_the_same_bytes(
    tiny_pretraining: PretrainParams, tiny_tokens: Path, tiny_tokenizer: Path, tmp_path: Path
) -> None:
    params = tiny_pretraining.model_copy(update={"steps": 400, "checkpoint_every_steps": 50})
    whole = project_with(params, tmp_path / "whole")
    assert start(whole, tiny_tokens, tiny_tokenizer).wait() == 0

    killed = project_with(params, tmp_path / "killed")
    kill_at_checkpoint(start(killed, tiny_tokens, tiny_tokenizer), killed / "work", "step-000000100")
    kill_at_checkpoint(start(killed, tiny_tokens, tiny_tokenizer), killed / "work", "step-000000200")
    assert not (killed / "encoder").exists()
    assert start(killed, tiny_tokens, tiny_tokenizer).wait() == 0
    assert outputs(killed) == outputs(whole)
