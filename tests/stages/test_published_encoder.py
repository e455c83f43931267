"""Claim: the example of docs/tasks.md fine-tunes a published encoder as it is: weights, tokenizer, dropout."""

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from ruamel.yaml import YAML
from tokenizers import Tokenizer
from transformers import AutoModel, BertModel

from clozeline.params.project import Params
from clozeline.params.reading import read_params
from clozeline.stages import tokenize
from tests.make.models import SENTENCES, SaveTrained, small_bert
from tests.make.projects import merge
from tests.make.tasks import fine_tune, metrics_of
from tests.make.texts import write_clean_text
from tests.make.topics import topic_records
from tests.stages.test_pretrain import run_stage

PROJECT = Path(__file__).parents[2]
NAME = "sentence-transformers/all-MiniLM-L6-v2"


@pytest.fixture
def published(save_trained: SaveTrained) -> Path:
    """Folder like that of all-MiniLM-L6-v2 on the hub: a BERT without a head, and its tokenizer."""
    torch.manual_seed(5)
    return save_trained(BertModel(small_bert()))


@pytest.fixture
def params(published: Path, tmp_path: Path) -> Params:
    """The project's params, overridden by the values of the example."""
    text = (PROJECT / "docs" / "tasks.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"## A published encoder\n.*?```yaml\n(.*?)```", text, re.DOTALL)
    yaml = YAML()
    tree = yaml.load(PROJECT / "params.yaml")
    merge(tree, yaml.load(example.replace(NAME, str(published))))
    yaml.dump(tree, tmp_path / "params.yaml")
    return read_params(tmp_path / "params.yaml")


def test_the_example_of_the_docs_fine_tunes_the_published_weights(
    params: Params, published: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
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
    assert task.optimizer.learning_rate == 5e-5
    pq.write_table(pa.Table.from_pylist(topic_records(40)), tmp_path / "topics.parquet")
    figures = metrics_of(fine_tune(task, tmp_path / "out", encoder=made / "encoder", data=tmp_path / "topics.parquet"))
    assert figures["num_classes"] == 3
    assert json.loads((tmp_path / "out" / "model" / "config.json").read_text())["model_type"] == "bert"
