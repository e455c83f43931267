"""Claim: evaluation texts with labels unseen in training are kept, and count as wrong for model and baselines."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from clozeline.tasks.classification.texts import MultiLabel, SingleLabel
from clozeline.tasks.task import Task, TaskReport
from tests.make.tasks import CASES, Case, prepare, record, write_records

NUM_ODD = 15
SPLITS = {"train": "train.jsonl", "validation": "validation.jsonl", "test": "test.jsonl"}
ONE_LABEL = [case for case in CASES["classification"] if "multi_label" not in case[0]]
SETS: Case = ({"multi_label": True}, {})


def task_of(case: Case, encoder: Path, folder: Path, num_odd: Mapping[str, int], odd_label: object = "odd") -> Task:
    """Return a task of the usual records plus, in each split, `num_odd` records with an additional label."""
    folder.mkdir()
    numbers = {"train": range(80), "validation": range(100, 130), "test": range(200, 230)}
    for part, usual in numbers.items():
        records: Iterable[Mapping[str, Any]] = (record(number, case[1]) for number in usual)
        first = usual.stop + 50
        odd = [record(number, case[1]) | {"label": odd_label} for number in range(first, first + num_odd.get(part, 0))]
        write_records(folder / SPLITS[part], [*records, *odd])
    return prepare("classification", case, encoder, folder, splits=SPLITS)


def number(report: TaskReport, key: str) -> float:
    value = report.figures[key]
    assert isinstance(value, float)
    return value


@pytest.mark.parametrize("case", ONE_LABEL, ids=["texts", "pairs"])
def test_test_texts_with_unseen_labels_count_as_wrong_in_single_label_tasks(
    case: Case, small_encoder: Path, tmp_path: Path
) -> None:
    usual = task_of(case, small_encoder, tmp_path / "usual", {}).test()
    report = task_of(case, small_encoder, tmp_path / "odd", {"test": NUM_ODD}).test()
    assert (usual.figures["num_test"], report.figures["num_test"]) == (30, 30 + NUM_ODD)
    for key in ("accuracy", "baseline_tfidf_accuracy", "majority_accuracy"):
        before, after = number(usual, key), number(report, key)
        assert after * (30 + NUM_ODD) == pytest.approx(before * 30), key
    assert report.headline.value == report.figures["accuracy"]
    assert report.headline.baseline_value == report.figures["baseline_tfidf_accuracy"]
    assert report.headline.trivial_value == report.figures["majority_accuracy"]
    assert sum(actual == "odd" for actual, _ in report.confusion) == NUM_ODD
    assert "odd" not in {predicted for _, predicted in report.confusion}
    assert report.per_class["odd"] == {"precision": 0, "recall": 0, "f1": 0, "num_texts": NUM_ODD}


@pytest.mark.parametrize("metric", ["macro_f1", "matthews"])
def test_every_headline_metric_counts_unseen_labels(metric: str, small_encoder: Path, tmp_path: Path) -> None:
    case: Case = ({"metric": metric}, {})
    headline = task_of(case, small_encoder, tmp_path / "odd", {"test": NUM_ODD}).test().headline
    assert headline.metric == metric
    assert headline.low <= headline.value <= headline.high < 1


def test_unseen_labels_of_multi_label_tasks_count_as_missed(small_encoder: Path, tmp_path: Path) -> None:
    report = task_of(SETS, small_encoder, tmp_path / "odd", {"test": NUM_ODD}, odd_label="odd|a").test()
    assert report.per_class["odd"] == {"precision": 0, "recall": 0, "f1": 0, "num_texts": NUM_ODD}
    assert report.per_class["a"]["num_texts"] == 15 + NUM_ODD
    assert report.figures["num_classes"] == 2
    assert report.confusion.count(("odd", "(none)")) == NUM_ODD
    # Upper bound: the score of an answer that finds every label but "odd".
    everything = 2 * (30 + NUM_ODD) / (30 + 2 * NUM_ODD + 30 + NUM_ODD)
    for key in ("micro_f1", "baseline_tfidf_micro_f1", "majority_micro_f1"):
        assert 0 < number(report, key) <= everything + 1e-9, key
    assert number(report, "exact_match") <= 30 / (30 + NUM_ODD)
    assert any("odd" in item.actual for item in report.examples)


@pytest.mark.parametrize("case", [*ONE_LABEL, SETS], ids=["texts", "pairs", "sets"])
def test_unseen_labels_also_count_in_the_validation_split(case: Case, small_encoder: Path, tmp_path: Path) -> None:
    usual = task_of(case, small_encoder, tmp_path / "usual", {})
    odd = task_of(case, small_encoder, tmp_path / "odd", {"test": NUM_ODD, "validation": NUM_ODD})
    assert odd.validation_score() < usual.validation_score()
    figures = odd.test().figures
    assert figures["num_validation"] == 30 + NUM_ODD
    assert figures["num_test_of_classes_without_training_text"] == NUM_ODD
    assert figures["num_validation_of_classes_without_training_text"] == NUM_ODD
    assert usual.test().figures["num_test_of_classes_without_training_text"] == 0


@pytest.mark.parametrize("case", [*ONE_LABEL, SETS], ids=["texts", "pairs", "sets"])
def test_the_model_learns_only_labels_of_the_training_split(case: Case, small_encoder: Path, tmp_path: Path) -> None:
    task = task_of(case, small_encoder, tmp_path / "odd", {"test": NUM_ODD, "validation": NUM_ODD})
    assert isinstance(task, SingleLabel | MultiLabel)
    assert task.model.config.id2label == {0: "a", 1: "b"}
    assert float(task.loss_sum(next(task.batches_from(0, 0)).inputs).detach()) > 0
