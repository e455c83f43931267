"""Claim: label sets and pairs are learned beyond their baselines, on small files of the real shape, and load in stock
classes with what was chosen for them.
"""

import json
import random
from collections.abc import Callable
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from clozeline.records.finetune.scored_items import read_held_out
from clozeline.system.errors import DataError, ParamsError
from clozeline.tasks.classification.texts import MultiLabel, SingleLabel
from clozeline.tasks.kinds import KINDS
from clozeline.tasks.task import Task
from tests.make import tasks as small_tasks
from tests.make.models import small_bert, with_random_weights
from tests.make.tasks import CASES, Case, fine_tune, inputs_of, metrics_of, params_of, record, write_rows

SIZES = {"max_length": 24, "batch_size": 16, "epochs": 8, "optimizer": {"learning_rate": 0.01}}
WORDS = ["tensor", "file", "error"]
Records = list[dict[str, str]]
Prepare = Callable[..., Any]


@pytest.fixture
def prepare(small_encoder: Path, tmp_path: Path) -> Prepare:
    """`prepare(records, **changes)` makes a task of the records."""

    def make(records: Records, encoder: Path = small_encoder, **changes: object) -> Task:
        data = write_rows(tmp_path / "data.jsonl", records)
        return KINDS["classification"].prepare(inputs_of(params_of("classification", **SIZES | changes), encoder, data))

    return make


def labels_behind_is(num_texts: int, *numbers: int) -> Records:
    """Return texts with one of `numbers` of labels, the words after each `is`; these words also stand elsewhere, so
    that counting them helps little.
    """
    draw = random.Random(5)
    records = []
    for _ in range(num_texts):
        labels = draw.sample(WORDS, draw.choice(numbers))
        said = [word for label in labels for word in (*draw.choices(WORDS, k=draw.randint(0, 2)), "is", label)]
        text = " ".join([*said, *draw.choices(WORDS, k=draw.randint(1, 4))])
        records.append({"text": text, "label": "|".join(labels)})
    return records


def asked_of_a_text(num_pairs: int) -> Records:
    """Return pairs whose second text selects the word before or after `is` in the first; neither suffices alone."""
    draw, questions = random.Random(6), ("the text", "a sentence")
    records = []
    for _ in range(num_pairs):
        sides, asked = draw.choices(WORDS, k=2), draw.randint(0, 1)
        others = [draw.choices(WORDS, k=draw.randint(0, 2)) for _ in range(2)]
        text = " ".join([*others[0], sides[0], "is", sides[1], *others[1]])
        records.append({"text": text, "second": questions[asked], "label": sides[asked]})
    return records


def often_and_rarely(num_texts: int) -> Records:
    return [{"text": f"the model {n}", "label": "often" if n % 5 else "rarely"} for n in range(num_texts)]


LEARNED: dict[str, tuple[Callable[[], Records], dict[str, object], str, float]] = {
    "texts": (lambda: labels_behind_is(700, 1), {}, "accuracy", 0.2),
    "sets": (lambda: labels_behind_is(900, 0, 1, 1, 2), {"multi_label": True}, "micro_f1", 0.1),
    "pairs": (
        lambda: asked_of_a_text(1500),
        {"epochs": 14, "optimizer": {"learning_rate": 0.005}, "second_field": "second"},
        "accuracy",
        0.2,
    ),
}


@pytest.fixture(scope="module")
def learned(small_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`learned(name)`: what the stage left for this row of `LEARNED`."""

    @cache
    def run(name: str) -> Path:
        records, changes, _, _ = LEARNED[name]
        folder = tmp_path_factory.mktemp(name)
        data = write_rows(folder / "data.jsonl", records())
        params = params_of("classification", **SIZES | changes)
        return fine_tune(params, folder / "out", encoder=small_encoder, data=data, seed=1)

    return run


@pytest.mark.parametrize("name", LEARNED)
def test_labels_that_word_counts_cannot_predict_are_learned(name: str, learned: Callable[[str], Path]) -> None:
    *_, metric, lead = LEARNED[name]
    metrics = metrics_of(learned(name))
    headline = metrics["headline"]
    assert (headline["metric"], headline["baseline"]) == (metric, "TF-IDF + logistic regression")
    assert headline["value"] == metrics[metric] > headline["baseline_value"] + lead > headline["trivial_value"] + lead
    assert headline["low"] < headline["value"] <= headline["high"]


def test_stock_classes_give_the_evaluated_label_sets_which_the_confusion_counts(learned: Callable[[str], Path]) -> None:
    out = learned("sets")
    model = AutoModelForSequenceClassification.from_pretrained(out / "model").eval()
    assert model.config.problem_type == "multi_label_classification"
    assert model.config.decision_threshold == metrics_of(out)["decision_threshold"]
    shown = json.loads((out / "examples" / "examples.json").read_text())
    texts = [item["given"]["text"] for item in shown]
    with torch.inference_mode():
        inputs = AutoTokenizer.from_pretrained(out / "model")(texts, return_tensors="pt", padding=True, truncation=True)
        is_given_BC = model(**inputs).logits.sigmoid() > model.config.decision_threshold
    names = [", ".join(model.config.id2label[place] for place in np.flatnonzero(row)) for row in is_given_BC]
    assert [item["predicted"] for item in shown] == [name or "(none)" for name in names]
    confusion = [line.split(",") for line in (out / "confusion.csv").read_text().splitlines()[1:]]
    num_named = sum(label != "(none)" for both in confusion for label in both)
    num_right = sum(actual == predicted for actual, predicted in confusion)
    assert 2 * num_right / num_named == pytest.approx(metrics_of(out)["micro_f1"]), "every label is counted"


def test_windows_of_long_texts_keep_their_labels_and_the_sequence_can_resume_at_any_batch(prepare: Prepare) -> None:
    records = [{"text": f"{word} " * length, "label": word} for word in WORDS for length in range(9, 29)]
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


def test_pairs_are_encoded_as_one_row_with_their_own_token_types_if_the_family_has_them(
    prepare: Prepare, save_trained: Callable[[Any], Path], tmp_path: Path
) -> None:
    pairs, bert = asked_of_a_text(60), save_trained(with_random_weights("BertForMaskedLM", small_bert()))
    assert next(prepare(pairs, second_field="second").batches_from(0, 0)).inputs.token_type_ids_BL is None
    task = prepare(pairs, encoder=bert, second_field="second")
    assert set(next(task.batches_from(0, 0)).inputs.token_type_ids_BL.unique().tolist()) == {0, 1}
    task.save(tmp_path / "out")
    assert all(item.second and item.right for item in read_held_out(tmp_path / "out"))
    shown = task.test().examples[0]
    stock = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    assert stock.config.reads_pairs
    inputs = AutoTokenizer.from_pretrained(tmp_path / "out")(*shown.given.values(), return_tensors="pt")
    assert "token_type_ids" in inputs
    with torch.inference_mode():
        assert stock.config.id2label[int(stock(**inputs).logits.argmax())] == shown.predicted


def test_the_f1_of_one_label_can_be_the_headline_or_stand_beside_it(prepare: Prepare) -> None:
    records = often_and_rarely(300)
    for label in ("rarely", "often"):
        report = prepare(records, metric="f1", positive_label=label).test()
        assert report.headline.metric == "f1"
        assert report.headline.value == report.figures["f1"] == report.per_class[label]["f1"]
        trivial = report.headline.trivial_value
        assert trivial == report.figures["majority_f1"]
        assert trivial > 0.8 if label == "often" else trivial == 0, "the largest class is `often`"
    beside = prepare(records, positive_label="often").test()
    assert (beside.headline.metric, beside.figures["f1"]) == ("accuracy", beside.per_class["often"]["f1"])
    with pytest.raises(ParamsError, match=r"(?s)`positive_label` never.*often, rarely"):
        prepare(records, metric="f1", positive_label="never")


@torch.no_grad()
def test_balanced_weights_give_every_class_the_same_total_weight(prepare: Prepare) -> None:
    plain, balanced = (prepare(often_and_rarely(200), class_weights=name) for name in ("none", "balanced"))
    batch = next(plain.batches_from(0, 0)).inputs
    rows = [batch.rows(row, row + 1) for row in range(batch.num_rows)]
    own = [float(balanced.loss_sum(row)) for row in rows]
    assert float(balanced.loss_sum(batch)) == pytest.approx(sum(own), rel=1e-4), "parts of a batch add up"
    for loss, row, target in zip(own, rows, batch.targets_B.tolist(), strict=True):
        size = int((balanced.train.targets_T == target).sum())
        assert loss / float(plain.loss_sum(row)) == pytest.approx(len(balanced.train) / (2 * size), rel=1e-4)


@torch.no_grad()
def test_the_label_set_loss_is_averaged_over_labels_and_summed_over_texts(prepare: Prepare) -> None:
    records = labels_behind_is(90, 0, 1, 1)
    task, weighted = (prepare(records, multi_label=True, class_weights=name) for name in ("none", "balanced"))
    batch = next(task.batches_from(0, 0)).inputs
    logits_BC = task.model.train()(**batch.inputs).logits
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logits_BC, batch.targets_B) * batch.num_rows
    torch.testing.assert_close(task.loss_sum(batch), expected)
    assert float(weighted.loss_sum(batch)) > float(expected)


def test_texts_that_are_too_long_are_truncated_dropped_or_refused_as_configured(prepare: Prepare) -> None:
    long = [{"text": f"the model {n} " + "the " * (3 if n % 10 else 40), "label": "ab"[n % 2]} for n in range(100)]
    cut = prepare(long).test().figures
    assert cut["num_truncated_train"] + cut["num_truncated_test"] > 5
    dropped = prepare(long, too_long="drop").test().figures
    assert dropped["records"]["too_long"] == 10
    assert dropped["num_truncated_train"] == dropped["num_truncated_test"] == 0
    with pytest.raises(DataError, match=r"10 of 100 texts exceed `max_length`.* the model"):
        prepare(long, too_long="error")


NUM_ODD = 15
PARTS = {"train": range(80), "validation": range(100, 130), "test": range(200, 230)}
SETS: Case = ({"multi_label": True}, {})


def with_odd(case: Case, encoder: Path, folder: Path, label: str, num_odd: int = NUM_ODD) -> Any:
    """Return a task of the usual records, with `num_odd` more validation and test records of a further label."""
    folder.mkdir()
    for part, usual in PARTS.items():
        further = range(usual.stop, usual.stop + (0 if part == "train" else num_odd))
        odd = [record(number, case[1]) | {"label": label} for number in further]
        write_rows(folder / f"{part}.jsonl", [*(record(number, case[1]) for number in usual), *odd])
    return small_tasks.prepare("classification", case, encoder, folder, splits={it: f"{it}.jsonl" for it in PARTS})


@pytest.mark.parametrize("case", CASES["classification"], ids=["texts", "pairs", "sets"])
def test_texts_with_a_label_that_training_lacks_count_as_wrong(case: Case, small_encoder: Path, tmp_path: Path) -> None:
    usual, task = (with_odd(case, small_encoder, tmp_path / f"{num}", "odd", num) for num in (0, NUM_ODD))
    assert isinstance(task, SingleLabel | MultiLabel)
    assert task.model.config.id2label == {0: "a", 1: "b"}
    assert float(task.loss_sum(next(task.batches_from(0, 0)).inputs).detach()) > 0
    assert task.validation_score() < usual.validation_score()
    before, report = usual.test(), task.test()
    for name in ("test", "validation"):
        counts = [it.figures[f"num_{name}_of_classes_without_training_text"] for it in (before, report)]
        assert counts == [0, NUM_ODD]
        assert report.figures[f"num_{name}"] == 30 + NUM_ODD
    assert report.per_class["odd"] == {"precision": 0, "recall": 0, "f1": 0, "num_texts": NUM_ODD}
    assert sum(actual == "odd" for actual, _ in report.confusion) == NUM_ODD
    assert "odd" not in {predicted for _, predicted in report.confusion}
    if isinstance(task, SingleLabel):
        top = report.headline
        keys = ("accuracy", "baseline_tfidf_accuracy", "majority_accuracy")
        assert [report.figures[key] for key in keys] == [top.value, top.baseline_value, top.trivial_value]
        rights = [[it.figures[key] * num for key in keys] for it, num in ((before, 30), (report, 30 + NUM_ODD))]
        assert rights[0] == pytest.approx(rights[1])


@pytest.mark.parametrize("metric", ["macro_f1", "matthews"])
def test_every_headline_metric_counts_unseen_labels(metric: str, small_encoder: Path, tmp_path: Path) -> None:
    headline = with_odd(({"metric": metric}, {}), small_encoder, tmp_path / "odd", "odd").test().headline
    assert headline.metric == metric
    assert headline.low <= headline.value <= headline.high < 1
    assert metric != "matthews" or headline.trivial_value == 0


def test_unseen_labels_of_label_sets_count_as_missed(small_encoder: Path, tmp_path: Path) -> None:
    report = with_odd(SETS, small_encoder, tmp_path / "odd", "odd|a").test()
    assert report.per_class["a"]["num_texts"] == 15 + NUM_ODD
    assert report.figures["num_classes"] == 2
    assert report.confusion.count(("odd", "(none)")) == NUM_ODD
    everything = 2 * (30 + NUM_ODD) / (30 + 2 * NUM_ODD + 30 + NUM_ODD)  # of an answer that finds all labels but "odd"
    for key in ("micro_f1", "baseline_tfidf_micro_f1", "majority_micro_f1"):
        assert 0 < report.figures[key] <= everything + 1e-9, key
    assert report.figures["exact_match"] <= 30 / (30 + NUM_ODD)
    assert any("odd" in item.actual for item in report.examples)
