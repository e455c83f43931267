"""The stage trains an encoder that stock classes load; killed, it goes on and ends with the same bytes."""

import csv
import hashlib
import json
import logging
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from transformers import AutoModelForMaskedLM, AutoTokenizer

from clozeline.language.shards import TokenShards
from clozeline.params.pretraining import PretrainParams
from clozeline.records.reading.tokens import INFO_NAME, TokensInfo
from clozeline.stages import pretrain
from clozeline.training.state import Callback, State
from tests.conftest import TokensMaker, counting_documents, write_tokens
from tests.make.packages import card_in

PROJECT = Path(__file__).parents[2]
CURVES = ("curve", "validation", "timing")


def run_stage(params: PretrainParams, tokens: Path, tokenizer: Path, folder: Path, **more: Any) -> None:
    pretrain.run(
        params,
        seed=1,
        tokens=tokens,
        tokenizer=tokenizer,
        out=folder / "encoder",
        metrics=folder / "metrics.json",
        work=folder / "work",
        **{name: folder / f"{name}.csv" for name in CURVES},
        **more,
    )


def outputs(folder: Path) -> dict[str, bytes]:
    """Return the output files that DVC would hash, which excludes those with timings."""
    files = [*(folder / "encoder").iterdir(), folder / "metrics.json", folder / "curve.csv", folder / "validation.csv"]
    return {file.name: file.read_bytes() for file in files}


Train = Callable[..., Path]


@pytest.fixture
def train(tiny_pretraining: PretrainParams, tiny_tokens: Path, tiny_tokenizer: Path, tmp_path: Path) -> Train:
    """`train(name, **changes)` trains on the tiny language with these params changed; returns its folder."""

    def train(name: str = "made", **changes: object) -> Path:
        run_stage(tiny_pretraining.model_copy(update=changes), tiny_tokens, tiny_tokenizer, tmp_path / name)
        return tmp_path / name

    return train


@pytest.fixture(scope="module")
def trained(
    tiny_pretraining: PretrainParams, made_tiny_tokenizer: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """What the stage made of the tiny language, beside its `tokens`; tests only look at it."""
    folder = tmp_path_factory.mktemp("trained")
    language = (counting_documents(*of) for of in ((300, 0), (40, 1)))
    tokens = write_tokens(folder / "tokens", made_tiny_tokenizer, *language)
    run_stage(tiny_pretraining, tokens, made_tiny_tokenizer, folder)
    return folder


def metrics_of(folder: Path) -> dict[str, Any]:
    metrics: dict[str, Any] = json.loads((folder / "metrics.json").read_text())
    return metrics


def test_the_encoder_loads_in_stock_transformers_and_figures_and_curve_agree(trained: Path) -> None:
    model = AutoModelForMaskedLM.from_pretrained(trained / "encoder", local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(trained / "encoder", local_files_only=True)
    assert model.config.vocab_size == len(tokenizer)
    assert list((trained / "work").iterdir()) == [], "checkpoints are gone"
    with (trained / "curve.csv").open(newline="") as file:
        points = list(csv.DictReader(file))
    metrics = metrics_of(trained)
    assert [int(point["step"]) for point in points] == [5, 10, 15, 20, 25, 30, 35, 40]
    assert metrics["steps"] == 40
    assert metrics["tokens"] == int(points[-1]["num_tokens"])
    assert metrics["last_training_loss_nats_per_token"] == float(points[-1]["loss"])
    assert metrics["last_training_accuracy"] == float(points[-1]["accuracy"]) > 0


def test_the_model_card_states_text_budget_and_limits(trained: Path, tiny_pretraining: PretrainParams) -> None:
    card = card_in(trained / "encoder")
    assert card.facts == {"library_name": "transformers", "pipeline_tag": "fill-mask"}
    split = TokensInfo.of_folder(trained / "tokens").splits["train"]
    told = card.sections["Pre-training text"]
    assert f"| train | {split.num_documents:,} | {split.text_bytes:,} | {split.num_tokens:,} |" in told
    assert hashlib.sha256((trained / "tokens" / INFO_NAME).read_bytes()).hexdigest() in told
    assert "40 optimizer steps" in card.sections["Pre-training"]
    assert "drawn at random" in card.sections["Base model"]
    assert f"{tiny_pretraining.max_length} tokens" in card.sections["Limits of the encoder"]


def test_the_card_of_a_causal_model_says_that_it_continues_texts(train: Train) -> None:
    card = card_in(train(objective="clm", steps=1) / "encoder")
    assert card.facts["pipeline_tag"] == "text-generation"
    assert "fills no blanks" in card.sections["Limits of the encoder"]


@pytest.mark.parametrize(("stated", "told"), [({"license": "cc-by-4.0"}, "cc-by-4.0"), ({}, "not stated")])
def test_the_model_card_passes_on_the_licence_of_the_base_model(
    stated: dict[str, str], told: str, train: Train, trained: Path, tmp_path: Path
) -> None:
    base = Path(shutil.copytree(trained / "encoder", tmp_path / "base"))
    facts = {**stated, "base_model": "someone/encoder"}
    front = "\n".join(f"{name}: {fact}" for name, fact in facts.items())
    (base / "README.md").write_text(f"---\n{front}\n---\n# Someone's\n", encoding="utf-8")
    card = card_in(train(start=str(base), steps=0) / "encoder")
    assert facts.items() <= card.facts.items()
    assert ("license" in card.facts) == ("license" in stated)
    assert f"Licence: {told}" in card.sections["Base model"]


@pytest.mark.parametrize(("steps", "epochs", "found"), [(1000, 2.0, 1), (5, 2.0, 0), (None, 2.0, 1)])
def test_a_training_ends_at_the_smallest_of_its_budgets(
    steps: int | None, epochs: float, found: int, train: Train, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    metrics = metrics_of(train(steps=steps, epochs=epochs))
    assert metrics["epochs"] == found
    assert (metrics["steps"] == 5) is (steps == 5)
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


class Began(Callback):
    def __init__(self) -> None:
        self.at_steps: list[int] = []

    def on_start(self, state: State) -> None:
        self.at_steps.append(state.step)


def test_a_stage_killed_in_mid_run_ends_with_the_same_bytes(
    tiny_pretraining: PretrainParams, tiny_tokens: Path, tiny_tokenizer: Path, tmp_path: Path
) -> None:
    params = tiny_pretraining.model_copy(update={"steps": 400, "checkpoint_every_steps": 50})
    killed = project_with(params, tmp_path / "killed")
    files = {"start": "start.lock", "out": "encoder", "metrics": "metrics.json", "work": "work"}
    paths = {"tokens": tiny_tokens, "tokenizer": tiny_tokenizer, **files, **{name: f"{name}.csv" for name in CURVES}}
    command = ["clozeline", "stage", "pretrain", *(f"{key}={value}" for key, value in paths.items())]
    process = subprocess.Popen([sys.executable, "-m", *command], cwd=killed)
    while not any(checkpoint.name >= "step-000000100" for checkpoint in (killed / "work").glob("*/step-*")):
        assert process.poll() is None, "the stage ended before it could be killed"
        time.sleep(0.002)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not (killed / "encoder").exists()

    began = Began()
    for folder in (killed, tmp_path / "whole"):
        run_stage(params, tiny_tokens, tiny_tokenizer, folder, callbacks=[began])
    assert began.at_steps[0] >= 100
    assert began.at_steps[1] == 0
    assert outputs(killed) == outputs(tmp_path / "whole")
