"""The stage trains an encoder that stock classes load; killed, it goes on and ends with the same bytes."""

import csv
import hashlib
import json
import logging
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from ruamel.yaml import YAML
from tokenizers import Tokenizer
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer, BertModel

from clozeline.params.pretraining import PretrainParams
from clozeline.params.reading import read_params
from clozeline.records.reading.tokens import INFO_NAME, TokensInfo
from clozeline.stages import pretrain, tokenize
from clozeline.training.state import Callback, State
from tests.conftest import counting_documents, write_tokens
from tests.make.models import SENTENCES, SaveTrained, small_bert
from tests.make.packages import card_in
from tests.make.projects import merge
from tests.make.tasks import fine_tune, metrics_of
from tests.make.texts import write_clean_text
from tests.make.topics import topic_records

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


def test_the_encoder_loads_in_stock_transformers_and_figures_curve_and_card_agree(
    trained: Path, tiny_pretraining: PretrainParams
) -> None:
    model = AutoModelForMaskedLM.from_pretrained(trained / "encoder", local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(trained / "encoder", local_files_only=True)
    assert model.config.vocab_size == len(tokenizer)
    assert list((trained / "work").iterdir()) == [], "checkpoints are gone"
    with (trained / "curve.csv").open(newline="") as file:
        points = list(csv.DictReader(file))
    metrics = json.loads((trained / "metrics.json").read_text())
    assert [int(point["step"]) for point in points] == [5, 10, 15, 20, 25, 30, 35, 40]
    assert metrics["steps"] == 40
    assert metrics["tokens"] == int(points[-1]["num_tokens"])
    assert metrics["last_training_loss_nats_per_token"] == float(points[-1]["loss"])
    assert metrics["last_training_accuracy"] == float(points[-1]["accuracy"]) > 0
    card = card_in(trained / "encoder")
    assert card.facts == {"library_name": "transformers", "pipeline_tag": "fill-mask"}
    split = TokensInfo.of_folder(trained / "tokens").splits["train"]
    told = card.sections["Pre-training text"]
    assert f"| train | {split.num_documents:,} | {split.text_bytes:,} | {split.num_tokens:,} |" in told
    assert hashlib.sha256((trained / "tokens" / INFO_NAME).read_bytes()).hexdigest() in told
    assert "40 optimizer steps" in card.sections["Pre-training"]
    assert f"{tiny_pretraining.max_length} tokens" in card.sections["Limits of the encoder"]


def test_the_model_card_passes_on_the_licence_of_the_base_model(train: Train, trained: Path, tmp_path: Path) -> None:
    base = Path(shutil.copytree(trained / "encoder", tmp_path / "base"))
    for licence, told in (("license: cc-by-4.0\n", "cc-by-4.0"), ("", "not stated")):
        (base / "README.md").write_text(f"---\n{licence}base_model: someone/encoder\n---\n# Someone's\n")
        card = card_in(train(start=str(base), steps=0) / "encoder")
        assert (card.facts["base_model"], card.facts.get("license", "not stated")) == ("someone/encoder", told)
        assert f"Licence: {told}" in card.sections["Base model"]


@pytest.mark.parametrize(("steps", "num_epochs"), [(1000, 1), (5, 0)])
def test_a_training_ends_at_the_smallest_of_its_budgets(
    steps: int, num_epochs: int, train: Train, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    made = train(steps=steps, epochs=2.0, objective="clm")
    metrics = json.loads((made / "metrics.json").read_text())
    assert (metrics["epochs"], metrics["steps"] == 5) == (num_epochs, steps == 5)
    assert ("because the text is short: `epochs: 2`" in caplog.text) is (steps == 1000)
    assert card_in(made / "encoder").facts["pipeline_tag"] == "text-generation", "of a causal model"


def project_with(params: PretrainParams, folder: Path) -> Path:
    """Return a folder in which `clozeline stage pretrain` reads these params."""
    tree = YAML(typ="safe").load(PROJECT / "params.yaml")
    tree |= {"pretrain": params.model_dump(), "seed": 1}
    tree["finetune"], tree["export"]["models"] = {}, {}  # their texts may be longer than this model reads
    folder.mkdir()
    YAML(typ="safe").dump(tree, folder / "params.yaml")
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


NAME = "sentence-transformers/all-MiniLM-L6-v2"


def test_the_example_of_the_docs_fine_tunes_the_published_weights(
    save_trained: SaveTrained, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As they are: weights, tokenizer, dropout. all-MiniLM-L6-v2 is a BERT without a head."""
    torch.manual_seed(5)
    published = save_trained(BertModel(small_bert()))
    text = (PROJECT / "docs" / "tasks.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"## A published encoder\n.*?```yaml\n(.*?)```", text, re.DOTALL)
    tree = YAML().load(PROJECT / "params.yaml")
    merge(tree, YAML().load(example.replace(NAME, str(published))))
    YAML().dump(tree, tmp_path / "params.yaml")
    params = read_params(tmp_path / "params.yaml")
    (tmp_path / "clean").mkdir()
    for part in ("train", "validation"):
        write_clean_text(tmp_path / "clean" / f"{part}.parquet", SENTENCES)
    tokenizer, tokens, made = (tmp_path / name for name in ("tokenizer", "tokens", "made"))
    paths = {"tokenizer": tokenizer, "out": tokens, "metrics": tmp_path / "t.json", "work": tmp_path / "ids"}
    tokenize.run(params.tokenize, clean=tmp_path / "clean", **paths)
    run_stage(params.pretrain, tokens, tokenizer, made)
    assert "has no trained head of this kind" in caplog.text
    theirs, ours = (AutoModel.from_pretrained(at, local_files_only=True) for at in (published, made / "encoder"))
    written = ours.state_dict()
    kept = {name: weight for name, weight in theirs.state_dict().items() if "pooler" not in name}
    # Rows of the embedding table without a token are left out.
    assert all(torch.equal(weight[: len(written[name])], written[name]) for name, weight in kept.items())
    assert ours.config.hidden_dropout_prob == theirs.config.hidden_dropout_prob == 0.1
    mine, published_one = (Tokenizer.from_file(str(at / "tokenizer.json")) for at in (made / "encoder", published))
    assert mine.encode(SENTENCES[0]).ids == published_one.encode(SENTENCES[0]).ids
    task = params.finetune["library"].model_copy(
        update={"splits": None, "train_length": None, "label_field": "topic", "max_length": 32, "epochs": 1}
    )
    pq.write_table(pa.Table.from_pylist(topic_records(40)), tmp_path / "topics.parquet")
    out = fine_tune(task, tmp_path / "out", encoder=made / "encoder", data=tmp_path / "topics.parquet")
    assert metrics_of(out)["num_classes"] == 3
    assert json.loads((out / "model" / "config.json").read_text())["model_type"] == "bert"
