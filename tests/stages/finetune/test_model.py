"""Claim: the model is that of the best look, loads in stock classes, ignores the test split, and is reproducible."""

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from clozeline.encoder.families.layout import TokenIds
from clozeline.language import models
from clozeline.params.reading import read_params
from clozeline.system.errors import DataError, TrainingError
from clozeline.tasks.classification.data import select
from clozeline.tasks.formats import Labelled
from tests.make.tasks import contents, keep_last_weights, metrics_of, without_card
from tests.stages.finetune.topics import PARAMS, Finetune, params, rows_of, topic_records


def test_an_encoder_that_detects_replaced_tokens_is_fine_tuned_as_any_other(
    run: Finetune, small_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It starts from the discriminator's weights; a step changes each by at most the learning rate."""
    (tmp_path / "tokenizer").mkdir()
    for file in small_encoder.glob("*token*"):
        shutil.copyfile(file, tmp_path / "tokenizer" / file.name)
    project = read_params(Path(__file__).parents[3] / "params.yaml").pretrain.model
    electra = project.model_copy(update={"family": "electra"})
    pair = models.build(electra, "rtd", TokenIds(90, pad_id=0, cls_id=2, sep_id=3), seed=0)
    torch.nn.init.normal_(pair.base_model.embeddings.tokens.weight, std=1.0)
    (tmp_path / "pair").mkdir()
    models.save(pair, tmp_path / "tokenizer", tmp_path / "pair")
    keep_last_weights(monkeypatch)
    out = run("out", encoder=tmp_path / "pair", epochs=1)
    assert 0 < metrics_of(out)["accuracy"] < 1
    stock = AutoModelForSequenceClassification.from_pretrained(out / "model", local_files_only=True)
    before_VH = pair.base_model.embeddings.tokens.weight
    assert 0 < (stock.get_input_embeddings().weight - before_VH).abs().max() < 0.5


def test_stock_transformers_gives_the_evaluated_answers(run: Finetune) -> None:
    out = run("out")
    model = AutoModelForSequenceClassification.from_pretrained(out / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(out / "model")
    _, *rows = rows_of(out)
    records = [Labelled((record["text"],), (record["topic"],)) for record in topic_records(150)]
    of_test = select(records, params()).test
    inputs = tokenizer([example.text for example in of_test], return_tensors="pt", padding=True, truncation=True)
    with torch.inference_mode():
        places = model(**inputs).logits.argmax(dim=1).tolist()
    assert rows == [[e.label, model.config.id2label[place]] for e, place in zip(of_test, places, strict=True)]


def test_two_runs_write_the_same_bytes_and_another_seed_does_not(run: Finetune) -> None:
    one, two, other = run("one"), run("two"), run("other", seed=8)
    assert contents(one) == contents(two)
    assert contents(one)["model/model.safetensors"] != contents(other)["model/model.safetensors"]


def test_test_texts_do_not_influence_the_model(run: Finetune, tmp_path: Path) -> None:
    before = run("before", epochs=2)
    records = [Labelled((record["text"],), (record["topic"],)) for record in topic_records(150)]
    of_test = {example.text for example in select(records, params()).test}
    wrong = {"cooking": "sailing", "sailing": "gardens", "gardens": "cooking"}
    changed = [
        {"text": text, "topic": wrong[label] if text in of_test else label}
        for (text,), (label,) in ((record.texts, record.labels) for record in records)
    ]
    pq.write_table(pa.Table.from_pylist(changed), tmp_path / "data.parquet")
    after = run("after", epochs=2)
    assert without_card(before / "model") == without_card(after / "model")
    assert metrics_of(after)["accuracy"] < 0.5 < metrics_of(before)["accuracy"]


def test_diverging_training_is_reported_and_leaves_earlier_outputs_unchanged(run: Finetune) -> None:
    out = run("out", epochs=1)
    before = contents(out)
    with pytest.raises(TrainingError, match="diverged"):
        run("out", epochs=1, optimizer=PARAMS.optimizer.model_dump() | {"learning_rate": 1e30, "clip_norm": 1e30})
    assert contents(out) == before


def test_too_few_texts_are_refused_before_any_training(run: Finetune, tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(topic_records(1)), tmp_path / "data.parquet")
    with pytest.raises(DataError, match="too few labelled texts"):
        run("out")
    assert not (tmp_path / "out").exists()
