"""Claim: label sets and pairs are learned beyond their baselines, on small files of the real shape, and load in stock
classes with what was chosen for them.
"""

import json
import random
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig, BertForMaskedLM

from clozeline.params.tasks import ClassificationParams
from clozeline.records.finetune.scored_items import read_held_out
from clozeline.system.errors import ArtifactError, DataError, ParamsError
from clozeline.tasks.classification.texts import MultiLabel, SingleLabel
from clozeline.tasks.kinds import KINDS
from clozeline.tasks.task import Task, TaskReport
from tests.make import tasks as small_tasks
from tests.make.tasks import CASES, Case, fine_tune, inputs_of, metrics_of, params_of, record, write_rows

TOPICS = {"cooking": "model reads", "sailing": "tensor shape", "gardens": "error hash"}
FILLER = ["the", "a", "of", "and", "with", "in", "that", "is"]


def params(**changes: object) -> ClassificationParams:
    sizes = {"max_length": 24, "batch_size": 16, "epochs": 3, "optimizer": {"learning_rate": 0.01}}
    made: ClassificationParams = params_of("classification", **{**sizes, **changes})
    return made


def topic_sets(num_texts: int) -> list[dict[str, Any]]:
    """Return texts about none, one or two topics; three words of a text reveal each of its topics."""
    draw = random.Random(1)
    records = []
    for number in range(num_texts):
        topics = sorted(draw.sample(sorted(TOPICS), number % 3))
        words = [draw.choice(TOPICS[topic].split()) for topic in topics for _ in range(3)]
        words += draw.choices(FILLER, k=6)
        draw.shuffle(words)
        records.append({"text": " ".join(words), "label": topics})
    return records


def repeated(num_pairs: int) -> list[dict[str, str]]:
    """Return pairs labelled by whether the second text begins with the last word of the first.

    No word predicts the label, and neither does any other word that the two texts share.
    """
    draw = random.Random(2)
    words = " ".join(TOPICS.values()).split()
    records = []
    for number in range(num_pairs):
        first, label = draw.choice(words), ("same", "other")[number % 2]
        second = first if label == "same" else draw.choice([word for word in words if word != first])
        filler = " ".join(draw.choices(FILLER, k=3))
        records.append({"text": f"{filler} {first}", "second": f"{second} {filler}", "label": label})
    return records


Prepare = Callable[..., Task]


@pytest.fixture
def prepare(small_encoder: Path, tmp_path: Path) -> Prepare:
    """`prepare(records, **changes)` makes a task of the records."""

    def make(records: list[dict[str, Any]], encoder: Path = small_encoder, **changes: object) -> Task:
        inputs = inputs_of(params(**changes), encoder, write_rows(tmp_path / "data.jsonl", records))
        return KINDS["classification"].prepare(inputs)

    return make


def run(records: list[dict[str, Any]], folder: Path, encoder: Path, **changes: object) -> dict[str, Any]:
    """Run the stage on `records` and return its metrics."""
    data = write_rows(folder / "data.jsonl", records)
    return metrics_of(fine_tune(params(**changes), folder / "out", encoder=encoder, data=data, seed=1))


def test_windows_of_long_texts_keep_their_labels_and_the_sequence_can_resume_at_any_batch(prepare: Prepare) -> None:
    """Each topic has a word of its own."""
    words = {label: words.split()[0] for label, words in TOPICS.items()}
    records = [
        {"text": f"{word} " * length, "label": label} for label, word in words.items() for length in range(9, 29)
    ]
    whole = list(islice(prepare(records, train_length=8, batch_size=4).batches_from(0, 0), 24))
    shown: dict[int, set[int]] = {0: set(), 1: set(), 2: set()}
    for batch in whole:
        assert batch.inputs.input_ids_BL.shape[1] == 8
        for target, ids in zip(batch.inputs.targets_B.tolist(), batch.inputs.input_ids_BL, strict=True):
            shown[target] |= set(ids[1:-1].tolist())
    assert all(shown.values())
    assert sum(map(len, shown.values())) == len(set.union(*shown.values()))
    resumed = prepare(records, train_length=8, batch_size=4).batches_from(whole[4].epoch, whole[4].index)
    for one, other in zip(whole[4:], resumed, strict=False):
        assert torch.equal(one.inputs.input_ids_BL, other.inputs.input_ids_BL)


@pytest.fixture(scope="module")
def multi_label(small_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Folder with the stage's output for a multi-label task, and its metrics."""
    folder = tmp_path_factory.mktemp("multi")
    return folder / "out", run(topic_sets(450), folder, small_encoder, multi_label=True)


def test_label_sets_are_learned(multi_label: tuple[Path, dict[str, Any]]) -> None:
    _, metrics = multi_label
    assert metrics["headline"]["metric"] == "micro_f1"
    assert metrics["headline"]["value"] == metrics["micro_f1"] > 0.75
    assert metrics["headline"]["low"] < metrics["micro_f1"] <= metrics["headline"]["high"]
    assert metrics["majority_micro_f1"] < 0.6
    assert metrics["baseline_tfidf_micro_f1"] > 0.9
    assert metrics["labels_per_text"] == pytest.approx(1, abs=0.2)


def test_stock_classes_give_the_evaluated_label_sets(multi_label: tuple[Path, dict[str, Any]]) -> None:
    folder, metrics = multi_label
    model = AutoModelForSequenceClassification.from_pretrained(folder / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    assert model.config.problem_type == "multi_label_classification"
    assert model.config.decision_threshold == metrics["decision_threshold"]
    shown = json.loads((folder / "examples" / "examples.json").read_text())
    with torch.inference_mode():
        inputs = tokenizer(
            [item["given"]["text"] for item in shown], return_tensors="pt", padding=True, truncation=True
        )
        is_given_BC = model(**inputs).logits.sigmoid() > model.config.decision_threshold
    names = [", ".join(model.config.id2label[place] for place in np.flatnonzero(row)) for row in is_given_BC]
    assert [item["predicted"] for item in shown] == [name or "(none)" for name in names]


def test_a_confusion_of_label_sets_counts_every_actual_and_every_predicted_label(
    multi_label: tuple[Path, dict[str, Any]],
) -> None:
    folder, metrics = multi_label
    rows = [line.split(",") for line in (folder / "confusion.csv").read_text().splitlines()[1:]]
    hits = sum(actual == predicted for actual, predicted in rows)
    both = sum(actual != "(none)" for actual, _ in rows) + sum(predicted != "(none)" for _, predicted in rows)
    assert 2 * hits / both == pytest.approx(metrics["micro_f1"])


@pytest.fixture(scope="module")
def bert(small_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Encoder of a family that distinguishes the texts of a pair, with the tokenizer of `small_encoder`."""
    folder = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=90,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=64,
    )
    BertForMaskedLM(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(small_encoder).save_pretrained(folder)
    return folder


def test_pairs_are_encoded_as_one_row_with_their_own_token_types(prepare: Prepare, bert: Path, tmp_path: Path) -> None:
    task = prepare(repeated(60), encoder=bert, second_field="second")
    batch = next(task.batches_from(0, 0)).inputs
    assert batch.token_type_ids_BL is not None
    assert set(batch.token_type_ids_BL.unique().tolist()) == {0, 1}
    task.save(tmp_path / "out")
    shown = task.test().examples[0]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    stock = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    inputs = tokenizer(shown.given["text"], shown.given["second"], return_tensors="pt")
    assert "token_type_ids" in inputs
    assert stock.config.reads_pairs
    held_out = read_held_out(tmp_path / "out")
    assert held_out
    assert all(item.second and item.right for item in held_out)
    with torch.inference_mode():
        assert stock.config.id2label[int(stock(**inputs).logits.argmax())] == shown.predicted


def test_a_family_without_token_types_also_learns_pairs(prepare: Prepare) -> None:
    task = prepare(repeated(60), second_field="second")
    assert next(task.batches_from(0, 0)).inputs.token_type_ids_BL is None


def test_pairs_are_learned(small_encoder: Path, tmp_path: Path) -> None:
    records = [
        {"text": record["text"], "second": f"the {word} is {number}", "label": word}
        for number, record in enumerate(repeated(150))
        for word in ("encoder", "sentence")
    ]
    metrics = run(records, tmp_path, small_encoder, second_field="second", metric="matthews")
    assert metrics["headline"]["metric"] == "matthews"
    assert metrics["headline"]["value"] == metrics["matthews"] > 0.5 > metrics["headline"]["trivial_value"] == 0


def test_the_f1_of_one_label_can_be_the_headline(prepare: Prepare) -> None:
    records = [{"text": f"the model {n}", "label": "often" if n % 5 else "rarely"} for n in range(300)]
    report = prepare(records, metric="f1", positive_label="rarely").test()
    assert report.headline.metric == "f1"
    assert report.headline.value == report.figures["f1"] == report.per_class["rarely"]["f1"]
    assert report.headline.trivial_value == report.figures["majority_f1"] == 0, "the largest class is the other one"
    often = prepare(records, metric="f1", positive_label="often").test()
    assert often.headline.value == often.per_class["often"]["f1"]
    assert often.headline.trivial_value > 0.8
    beside = prepare(records, positive_label="often").test()
    assert (beside.headline.metric, beside.figures["f1"]) == ("accuracy", beside.per_class["often"]["f1"])
    with pytest.raises(ParamsError, match=r"(?s)`positive_label` never.*often, rarely"):
        prepare(records, metric="f1", positive_label="never")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"metric": "f1"}, "positive_label"),
        ({"metric": "f1", "multi_label": True}, "multi-label"),
        ({"second_field": "second", "train_length": 8}, "train_length: null"),
    ],
)
def test_knobs_that_exclude_each_other_are_refused(changes: dict[str, object], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        params(**changes)


def words_around_is(num_texts: int) -> list[dict[str, str]]:
    """Return texts whose label is the word after `is`; the same words stand elsewhere, so counting helps little."""
    draw, words = random.Random(4), ["tensor", "file", "error"]
    records = []
    for _ in range(num_texts):
        label, before, behind = draw.choice(words), *(draw.choices(words, k=draw.randint(1, 4)) for _ in range(2))
        records.append({"text": " ".join([*before, "is", label, *behind]), "label": label})
    return records


def sets_behind_is(num_texts: int) -> list[dict[str, Any]]:
    """Return texts whose labels are the words after each `is`; the same words also stand elsewhere."""
    draw, words = random.Random(5), ["tensor", "file", "error"]
    records = []
    for _ in range(num_texts):
        labels = draw.sample(words, draw.choice([0, 1, 1, 2]))
        said = [word for label in labels for word in (*draw.choices(words, k=draw.randint(0, 2)), "is", label)]
        text = " ".join([*said, *draw.choices(words, k=draw.randint(1, 3))])
        records.append({"text": text, "label": sorted(labels)})
    return records


def asked_of_a_text(num_pairs: int) -> list[dict[str, str]]:
    """Return pairs whose second text selects the word before or after `is` in the first; neither suffices alone."""
    draw, words, questions = random.Random(6), ["tensor", "file", "error"], ("the text", "a sentence")
    records = []
    for _ in range(num_pairs):
        sides, asked = draw.choices(words, k=2), draw.randint(0, 1)
        others = [draw.choices(words, k=draw.randint(0, 2)) for _ in range(2)]
        text = " ".join([*others[0], sides[0], "is", sides[1], *others[1]])
        records.append({"text": text, "second": questions[asked], "label": sides[asked]})
    return records


@pytest.mark.parametrize(
    ("records", "changes", "metric", "lead"),
    [
        (words_around_is(700), {"epochs": 8}, "accuracy", 0.2),
        (sets_behind_is(900), {"epochs": 8, "multi_label": True}, "micro_f1", 0.1),
        (
            asked_of_a_text(1500),
            {"epochs": 14, "optimizer": {"learning_rate": 0.005}, "second_field": "second"},
            "accuracy",
            0.2,
        ),
    ],
    ids=["texts", "sets", "pairs"],
)
def test_labels_that_word_counts_cannot_predict_are_learned(
    records: list[dict[str, Any]],
    changes: dict[str, Any],
    metric: str,
    lead: float,
    small_encoder: Path,
    tmp_path: Path,
) -> None:
    headline = run(records, tmp_path, small_encoder, **changes)["headline"]
    assert (headline["metric"], headline["baseline"]) == (metric, "TF-IDF + logistic regression")
    assert headline["value"] > headline["baseline_value"] + lead > headline["trivial_value"] + lead


@torch.no_grad()
def test_balanced_weights_give_every_class_the_same_total_weight(prepare: Prepare) -> None:
    records = [{"text": f"the model {n}", "label": "often" if n % 5 else "rarely"} for n in range(200)]
    plain, balanced = prepare(records), prepare(records, class_weights="balanced")
    batch = next(plain.batches_from(0, 0)).inputs
    ours = sum(float(balanced.loss_sum(batch.rows(row, row + 1))) for row in range(batch.num_rows))
    assert float(balanced.loss_sum(batch)) == pytest.approx(ours, rel=1e-4), "parts of a batch add up"
    for row, target in enumerate(batch.targets_B.tolist()):
        weight = float(balanced.loss_sum(batch.rows(row, row + 1)) / plain.loss_sum(batch.rows(row, row + 1)))
        assert isinstance(balanced, SingleLabel)
        size = int((balanced.train.targets_T == target).sum())
        assert weight == pytest.approx(len(balanced.train) / (2 * size), rel=1e-4)


@torch.no_grad()
def test_the_label_set_loss_is_averaged_over_labels_and_summed_over_texts(prepare: Prepare) -> None:
    task = prepare(topic_sets(90), multi_label=True)
    batch = next(task.batches_from(0, 0)).inputs
    logits_BC = task.model.train()(**batch.inputs).logits
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logits_BC, batch.targets_B) * batch.num_rows
    torch.testing.assert_close(task.loss_sum(batch), expected)
    weighted = prepare(topic_sets(90), multi_label=True, class_weights="balanced")
    assert float(weighted.loss_sum(batch)) > float(expected)


LONG = [{"text": f"the model {n} " + "the " * (40 if n % 10 == 0 else 3), "label": "ab"[n % 2]} for n in range(100)]


def test_texts_that_are_too_long_are_truncated_dropped_or_refused_as_configured(prepare: Prepare) -> None:
    cut = prepare(LONG).test().figures
    assert cut["num_truncated_train"] + cut["num_truncated_test"] > 5
    dropped = prepare(LONG, too_long="drop").test().figures
    assert dropped["records"]["too_long"] == 10
    assert dropped["num_truncated_train"] == dropped["num_truncated_test"] == 0
    with pytest.raises(DataError, match="10 of 100 texts exceed `max_length`") as caught:
        prepare(LONG, too_long="error")
    assert "the model" in str(caught.value)


def test_a_tokenizer_with_another_padding_token_is_refused(prepare: Prepare, bert: Path, tmp_path: Path) -> None:
    folder = tmp_path / "encoder"
    folder.mkdir()
    for file in bert.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"pad_token_id": 1}))
    with pytest.raises(ArtifactError, match="pads with token 0"):
        prepare(LONG, encoder=folder)


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
        write_rows(folder / SPLITS[part], [*records, *odd])
    return small_tasks.prepare("classification", case, encoder, folder, splits=SPLITS)


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
