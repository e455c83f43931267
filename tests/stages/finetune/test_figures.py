"""Claim: a learnable task is learned; its figures are complete, and come with baselines and counts."""

import csv
import hashlib
import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clozeline.records.finetune.task_metrics import TaskMetrics
from tests.make.packages import card_in
from tests.make.tasks import metrics_of
from tests.stages.finetune.topics import PARAMS, TOPICS, Finetune, rows_of, topic_records


def classes_of(folder: Path) -> dict[str, dict[str, str]]:
    with (folder / "classes.csv").open(newline="") as file:
        return {row["class"]: row for row in csv.DictReader(file)}


def test_a_task_that_can_be_learned_is_learned(run: Finetune) -> None:
    metrics = metrics_of(run("out"))
    assert metrics["accuracy"] > 0.7
    assert metrics["accuracy_low"] < metrics["accuracy"] < metrics["accuracy_high"]
    assert metrics["majority_accuracy"] < 0.5
    assert metrics["baseline_tfidf_accuracy"] > 0.9


def test_figures_of_each_class_have_their_own_table(run: Finetune) -> None:
    out = run("out", epochs=1)
    classes = classes_of(out)
    assert set(classes) == set(TOPICS)
    shown = [float(of_class["f1"]) for of_class in classes.values()]
    assert np.mean(shown) == pytest.approx(metrics_of(out)["macro_f1"])
    assert not any(topic in key for topic in TOPICS for key in metrics_of(out)), "each would be a metrics column"


def test_the_headline_is_the_accuracy_with_its_baselines(run: Finetune) -> None:
    metrics = metrics_of(run("out", epochs=1))
    headline = metrics["headline"]
    assert (headline["metric"], headline["value"]) == ("accuracy", metrics["accuracy"])
    assert headline["low"] < headline["value"] < headline["high"]
    assert headline["baseline_value"] == metrics["baseline_tfidf_accuracy"]
    assert headline["trivial_value"] == metrics["majority_accuracy"]


def test_the_fitted_head_is_a_baseline_and_is_kept_if_training_ruins_the_model(run: Finetune) -> None:
    ruined = {"learning_rate": 100.0, "weight_decay": 0.0, "clip_norm": 1e9}
    metrics = metrics_of(run("out", epochs=1, warmup_fraction=0.0, optimizer=PARAMS.optimizer.model_dump() | ruined))
    headline = metrics["headline"]
    assert metrics["best_epoch"] == 0
    assert metrics["accuracy"] == metrics["baseline_probe_accuracy"] > metrics["majority_accuracy"]
    assert headline["method"] == "logistic regression on the frozen encoder"
    assert headline["beside"] == [{"name": headline["method"], "value": metrics["accuracy"]}]
    assert headline["lead_low"] <= metrics["accuracy"] - metrics["baseline_tfidf_accuracy"] <= headline["lead_high"]


def test_the_model_card_has_the_figures_the_data_and_the_encoder(
    run: Finetune, small_encoder: Path, tmp_path: Path
) -> None:
    encoder = Path(shutil.copytree(small_encoder, tmp_path / "encoder"))
    (encoder / "README.md").write_text("---\nlicense: mit\n---\n# Encoder\n\n## Base model\n\n- someone/bert\n")
    out = run("out", epochs=1, encoder=encoder)
    card = card_in(out / "model")
    headline = metrics_of(out)["headline"]
    told = f"{headline['value']:.4f} ({headline['low']:.4f} to {headline['high']:.4f})"
    assert f"| {headline['method']} | {told} |" in card.sections["Figures"]
    assert f"| largest class | {headline['trivial_value']:.4f} |" in card.sections["Figures"]
    assert hashlib.sha256((tmp_path / "data.parquet").read_bytes()).hexdigest() in card.sections["Task"]
    assert card.facts == {"license": "mit"}
    assert card.sections["Base model"] == "- someone/bert"


def test_the_model_card_lists_the_known_faults_of_the_model(run: Finetune) -> None:
    out = run("out", epochs=1, frozen_layers=0, warmup_fraction=1.0)
    faults = TaskMetrics.read(out / "metrics.json").faults
    card = card_in(out / "model")
    assert faults
    assert all(f"- Known fault: {fault}." in card.sections["Limits"] for fault in faults)


def test_sample_test_texts_are_written_with_actual_and_predicted_label(run: Finetune) -> None:
    out = run("out", epochs=1, num_examples=6)
    shown = json.loads((out / "examples" / "examples.json").read_text())
    told = {record["text"]: record["topic"] for record in topic_records(150)}
    assert len(shown) == 6
    assert all(item["actual"] == told[item["given"]["text"]] for item in shown)
    assert all(item["is_right"] == (item["actual"] == item["predicted"]) for item in shown)
    assert {item["is_right"] for item in shown} == {True, False}


def test_the_counts_add_up(run: Finetune) -> None:
    metrics = metrics_of(run("out", epochs=1))
    records = metrics["records"]
    assert records["num_read"] == 450 == sum(count for name, count in records.items() if name != "num_read")
    parts = metrics["num_train"], metrics["num_validation"], metrics["num_test"]
    assert sum(parts) == records["num_used"]
    assert metrics["num_test_seen_in_pretraining"] == 0 == metrics["contaminated_fraction"]


def test_the_confusion_table_agrees_with_the_accuracy(run: Finetune) -> None:
    out = run("out", epochs=1)
    header, *rows = rows_of(out)
    assert header == ["actual", "predicted"]
    assert np.mean([actual == predicted for actual, predicted in rows]) == pytest.approx(metrics_of(out)["accuracy"])
    sizes = {label: int(of_class["num_texts"]) for label, of_class in classes_of(out).items()}
    assert Counter(actual for actual, _ in rows) == sizes


def test_long_texts_are_counted(run: Finetune) -> None:
    metrics = metrics_of(run("out", max_length=10, epochs=1))
    assert metrics["num_truncated_train"] > metrics["num_truncated_test"] > 0
    assert metrics_of(run("whole", max_length=64, epochs=1))["num_truncated_train"] == 0


def test_test_texts_seen_in_pre_training_are_counted(run: Finetune) -> None:
    texts = [record["text"].upper() for record in topic_records(150)]
    metrics = metrics_of(run("out", pretraining_texts=texts, epochs=1))
    assert metrics["num_test_seen_in_pretraining"] == metrics["num_test"]
    assert metrics["num_test_near_duplicates_in_pretraining"] == metrics["num_test"]
    assert metrics["contaminated_fraction"] == 1.0


def test_test_texts_with_near_duplicates_in_the_training_split_are_counted(run: Finetune, tmp_path: Path) -> None:
    apart = metrics_of(run("out", epochs=1))
    assert apart["num_test_near_duplicates_in_train"] == 0
    assert "without_near_duplicates" not in apart["headline"]
    long = [{**record, "text": f"{record['text']} {record['text'][::-1]}"} for record in topic_records(30)]
    twins = [{**record, "text": f"{record['text']} then"} for record in long]
    pq.write_table(pa.Table.from_pylist([*long, *twins]), tmp_path / "data.parquet")
    out = run("twins", epochs=1)
    metrics = metrics_of(out)
    num_near, headline = metrics["num_test_near_duplicates_in_train"], metrics["headline"]
    assert 10 < num_near < metrics["num_test"]
    others = headline["without_near_duplicates"]
    num_right = others["value"] * (metrics["num_test"] - num_near)
    assert num_right == pytest.approx(round(num_right))
    assert 0 <= headline["value"] * metrics["num_test"] - num_right <= num_near
    assert f"{others['value']:.4f} ({others['low']:.4f} to" in card_in(out / "model").sections["Figures"]
    assert metrics["records"]["duplicates"] == 0
