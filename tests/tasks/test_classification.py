"""Claim: splits are disjoint and stable, every dropped text is counted, and every score is that of the reference; label
sets and pairs are learned beyond their baselines."""

import json
import logging
import random
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef, precision_recall_fscore_support
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from clozeline.records.finetune.scored_items import read_held_out
from clozeline.records.reading.streams import identity_of
from clozeline.system.errors import DataError, ParamsError
from clozeline.tasks.classification import data, scores
from clozeline.tasks.classification.scores import TextsOrPairs, best_threshold, tfidf_logistic_regression
from clozeline.tasks.classification.texts import SingleLabel
from clozeline.tasks.formats import task_records
from clozeline.tasks.kinds import KINDS
from clozeline.tasks.selection import LabelledRecord, Part, count_seen, strictest
from clozeline.tasks.task import Task
from tests.make import tasks as small_tasks
from tests.make.models import small_bert, with_random_weights
from tests.make.tasks import CASES, Case, fine_tune, inputs_of, metrics_of, params_of, record, write_rows
from tests.make.texts import write_clean_text

Given = tuple[Part, LabelledRecord]
SPLITS = {"splits": {"train": "t", "validation": "v", "test": "s"}}
SETS = {"multi_label": True, "max_per_class": None}


def select(records: Iterable[Given], fits: data.Fits | None = None, **changes: object) -> data.Selection:
    """Return the selection, whose counts always add up."""
    selection = data.select(records, params_of("classification", **{"max_per_class": 1000, **changes}), fits)
    count = dict(selection.count.by_reason)
    assert count.pop("num_read") == sum(count.values())
    assert selection.count["num_used"] == sum(map(len, selection.parts.values()))
    return selection


def labelled(text: str, label: object, part: Part = "train", **more: str) -> Given:
    return part, LabelledRecord({"text": text, "label": label, **more}, f"the place of {text}")


def records(**sizes: int) -> list[Given]:
    return [labelled(f"{label} says {number}", label) for label, size in sizes.items() for number in range(size)]


def given_parts() -> list[Given]:
    """Return 200 texts for training, 50 for validation and 50 for the test."""
    sizes: dict[Part, int] = {"train": 100, "validation": 25, "test": 25}
    return [
        labelled(f"{label} {part} {number}", label, part)
        for part, size in sizes.items()
        for label in "ab"
        for number in range(size)
    ]


def part_of_each(selection: data.Selection) -> dict[str, str]:
    return {example.text: part for part, examples in selection.parts.items() for example in examples}


def test_splits_are_disjoint_and_have_the_requested_sizes() -> None:
    selection = select(records(a=1000, b=1000), test_fraction=0.3, validation_fraction=0.1)
    identities = [{example.identity for example in part} for part in selection.parts.values()]
    assert sum(map(len, identities)) == len(set.union(*identities)) == 2000
    assert len(selection.test) == pytest.approx(600, abs=80)
    assert len(selection.validation) == pytest.approx(200, abs=50)
    few = select(records(a=1000, b=1000), test_fraction=0.3, validation_fraction=0.1, max_train=30)
    assert (len(few.train), few.count["beyond_max_train"]) == (30, len(selection.train) - 30)
    assert (few.validation, few.test) == (selection.validation, selection.test)


def test_a_text_stays_in_its_split_whatever_is_added_and_in_any_order() -> None:
    few, many = (part_of_each(select(given)) for given in (records(a=200, b=200), records(b=500, a=500)[::-1]))
    assert {text: many[text] for text in few} == few
    given = records(a=50, b=70, c=30)
    assert select(given, max_per_class=40) == select(given[::-1], max_per_class=40)


@pytest.mark.parametrize(
    ("added", "changes", "counts"),
    [
        ([labelled(f"  {label.upper()} SAYS 1\n", label) for label in "ab"], {}, {"duplicates": 2}),
        ([labelled("either", "a"), labelled("Either", "b")], {}, {"contradictions": 2}),
        ([labelled(" \n", "a"), labelled("x", " ")], {}, {"without_text": 1, "without_label": 1}),
        (records(c=40, d=60), {"max_classes": 2}, {"of_rarer_classes": 80}),  # ties by name
        (records(b=341)[40:], {"max_per_class": 40}, {"above_max_per_class": 301}),
    ],
)
def test_records_that_are_not_used_are_counted(
    added: list[Given], changes: dict[str, Any], counts: dict[str, int]
) -> None:
    selection = select(records(a=40, b=40) + added, **changes)
    assert {reason: num for reason, num in selection.count.by_reason.items() if num and reason in counts} == counts
    assert "either" not in {text.lower() for text in part_of_each(selection)}
    if "max_classes" in changes:
        assert selection.labels == ("a", "d")
    if "max_per_class" in changes:
        sampled = [int(text.split()[-1]) for text in part_of_each(selection) if text.startswith("b")]
        assert max(sampled) > 100, "sampled from all"


TWICE: list[Given] = [(part, record) for part in ("train", "test") for _, record in records(a=30, b=30)]
STRANGE = [labelled(it.values["text"], "z", "test") if part == "test" else (part, it) for part, it in given_parts()]


@pytest.mark.parametrize(
    ("given", "changes", "problem", "do"),
    [
        (records(a=100), {}, "too few labelled texts: 100 records", "add labelled texts"),
        (TWICE, {"splits": {"train": "t", "test": "t"}}, "120 records", "60 of the records also occur in the test"),
        (STRANGE, SPLITS, "no test text has a label that the model can answer (a, b)", "the same way"),
        (STRANGE, SPLITS | SETS, "no test text has a label that the model can answer (a, b)", "the same way"),
    ],
)
def test_splits_that_teach_or_measure_nothing_are_refused(
    given: list[Given], changes: dict[str, Any], problem: str, do: str
) -> None:
    with pytest.raises(DataError) as caught:
        select(given, **changes)
    assert problem in caught.value.problem
    assert do in caught.value.do


def test_given_splits_are_kept_and_test_texts_removed_from_training_and_validation() -> None:
    leaks = [labelled("A Test 3", "a"), labelled("b test  4", "a", "validation"), labelled("b test 4", "b")]
    selection = select(given_parts() + leaks, **SPLITS)
    assert (selection.count["in_several_parts"], selection.count["contradictions"]) == (3, 0)
    assert [len(part) for part in selection.parts.values()] == [200, 50, 50]
    assert all(text.split()[1] == part for text, part in part_of_each(selection).items())
    given = [(part, record) for part, record in given_parts() if part != "validation"]
    selection = select(given, splits={"train": "t", "test": "s"})
    assert len(selection.validation) == pytest.approx(20, abs=12), "a missing one is taken from training"
    assert (len(selection.train) + len(selection.validation), len(selection.test)) == (200, 50)


def test_multi_label_texts_without_a_label_or_with_a_rare_one_are_used() -> None:
    given = [labelled(f"{names} {number}", [*names]) for names in ("ab", "a", "", "bc") for number in range(40)]
    given += [labelled("ab 3", ["b", "a", "a"]), labelled("ab 4", ["a"])]
    selection = select(given, **SETS, max_classes=2)
    assert selection.labels == ("a", "b")
    assert (selection.count["duplicates"], selection.count["contradictions"]) == (1, 2), "labels have no order"
    every = [example for part in selection.parts.values() for example in part]
    assert {example.labels for example in every} == {("a", "b"), ("a",), (), ("b",)}


def test_pairs_are_identified_by_both_texts() -> None:
    seconds = {"x": "a", "y": "b"}
    pairs = [labelled(f"text {n}", label, second=second) for n in range(60) for second, label in seconds.items()]
    odd = [labelled("text 1", "a", second=" X"), labelled("text", "a", second="")]
    selection = select([*pairs, *odd], second_field="second")
    counts = selection.count
    assert (counts["duplicates"], counts["contradictions"], counts["without_text"]) == (1, 0, 1)
    assert {example.second for example in selection.train} == {"x", "y"}


def test_items_seen_in_pretraining_are_counted(tmp_path: Path) -> None:
    items = ["a says 1", "a says 2", "b says 3"]
    write_clean_text(tmp_path / "train.parquet", [items[0].upper(), items[1] + "\n", "another text", items[0]])
    assert count_seen(map(identity_of, items), tmp_path / "train.parquet") == 2


def test_skipped_records_are_reported_with_reasons_and_first_places(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    file = tmp_path / "labels.csv"
    good = [f"text number {number},{'ab'[number % 2]}" for number in range(60)]
    file.write_text("\n".join(["text,label", *good, ",a", "late,", "Text number 0,a", "both,a", "both,b"]) + "\n")
    params = params_of("classification")
    data.select(task_records(params, file), params)
    reasons = {"without text 1": 62, "without label 1": 63, "duplicates 1": 64, "contradictions 2": 65}
    told = ", ".join(f"{reason} (first: {file}, line {line})" for reason, line in reasons.items())
    assert caplog.messages == [f"records: 65 read, 60 used; left out: {told}"]
    assert strictest(["train", "validation", "test", "train"]) == "test"
    assert strictest(["train", "validation"]) == "validation"


LABELS = ("a", "b", "c", "d")
places = st.integers(0, len(LABELS) - 1)


@given(pairs=st.lists(st.tuples(places, places), min_size=1, max_size=60), positive=places)
@settings(deadline=None)
def test_scores_equal_those_of_scikit_learn(pairs: list[tuple[int, int]], positive: int) -> None:
    actual, predicted = np.array(pairs).T
    found = scores.score(actual, predicted, len(LABELS))
    assert found["accuracy"] == pytest.approx(accuracy_score(actual, predicted))
    assert found["macro_f1"] == pytest.approx(f1_score(actual, predicted, average="macro", zero_division=0))
    if len({*actual.tolist(), *predicted.tolist()}) > 1:  # for a single class scikit-learn only warns
        assert found["matthews"] == pytest.approx(matthews_corrcoef(actual, predicted))
    columns = precision_recall_fscore_support(actual, predicted, labels=range(len(LABELS)), zero_division=0)
    for label, *figures in zip(LABELS, *columns, strict=True):
        assert [*scores.score_each(actual, predicted, LABELS)[label].values()] == pytest.approx(figures)
    assert scores.f1_of(positive)(actual, predicted, len(LABELS)) == pytest.approx(columns[2][positive])


def test_constant_classes_have_zero_correlation() -> None:
    for pairs in ([(1, 2)] * 5, [(0, 0), (1, 0)], [(3, 0), (3, 1), (3, 2)], [(0, 0), (0, 0)]):
        assert scores.matthews(*np.array(pairs).T, len(LABELS)) == 0
    assert scores.largest_class(np.array([0, 2, 1, 2, 2]), 3).tolist() == [2, 2, 2]


@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_scores_of_label_sets_equal_those_of_scikit_learn(data: st.DataObject) -> None:
    actual_TC = data.draw(arrays(bool, st.tuples(st.integers(1, 20), st.just(3))))
    predicted_TC = data.draw(arrays(bool, actual_TC.shape))
    micro, macro = (f1_score(actual_TC, predicted_TC, average=name, zero_division=0) for name in ("micro", "macro"))
    expected = {"micro_f1": micro, "macro_f1": macro, "exact_match": accuracy_score(actual_TC, predicted_TC)}
    assert scores.score_sets(actual_TC, predicted_TC) == pytest.approx(expected)
    columns = precision_recall_fscore_support(actual_TC, predicted_TC, zero_division=0)
    for label, *figures in zip(LABELS[:3], *columns, strict=True):
        assert [*scores.score_each_label(actual_TC, predicted_TC, LABELS[:3])[label].values()] == pytest.approx(figures)


@pytest.mark.parametrize("figure", scores.SET_FIGURES.values())
def test_the_chosen_threshold_has_the_best_score_and_of_several_is_nearest_one_half(figure: scores.SetFigure) -> None:
    draw = np.random.default_rng(0)
    actual_TC = draw.random((80, 3)) < 0.2
    share_TC = np.clip(actual_TC * 0.1 + draw.random((80, 3)) * 0.2, 0, 1)
    best = max(figure(actual_TC, share_TC > threshold) for threshold in share_TC.ravel())
    assert figure(actual_TC, share_TC > best_threshold(actual_TC, share_TC, figure)) == pytest.approx(best)
    assert figure(actual_TC, share_TC > 0.5) < best
    actual_TC = np.array([[True, False]])
    assert best_threshold(actual_TC, np.array([[0.9, 0.1]]), figure) == 0.5
    assert 0.1 < best_threshold(actual_TC, np.array([[0.4, 0.1]]), figure) < 0.4


DRAW = np.random.default_rng(0)
TOPICS = (["oven", "salt", "flour"], ["mast", "keel", "tide"], ["soil", "seed", "root"])


def topic_texts(size: int, num_classes: int = 3) -> scores.LabelledTexts:
    class_T = DRAW.integers(num_classes, size=size)
    return TextsOrPairs(
        [" ".join(DRAW.choice([*TOPICS[place], "the", "of", "and"], size=8)) for place in class_T]
    ), class_T


@pytest.mark.parametrize("num_classes", [2, 3])
def test_the_tfidf_baseline_finds_topics_and_is_deterministic(num_classes: int) -> None:
    train, validation, (texts, class_T) = (topic_texts(size, num_classes) for size in (300, 60, 200))
    first = tfidf_logistic_regression(train, validation, texts)
    assert (first == class_T).mean() > 0.95
    np.testing.assert_array_equal(first, tfidf_logistic_regression(train, validation, texts))


def test_tfidf_of_pairs_sees_words_shared_by_both_texts() -> None:
    words = [word for topic in TOPICS for word in topic]
    first, other = DRAW.choice(words, size=(2, 600))
    second = np.where(DRAW.random(600) < 0.5, first, other)
    class_T = (first == second).astype(np.int64)
    for texts, least, most in ((TextsOrPairs([*first], [*second]), 0.99, 1), (TextsOrPairs([*first]), 0, 0.8)):
        found_T = tfidf_logistic_regression((texts, class_T), (texts, class_T), texts)
        assert least <= (found_T == class_T).mean() <= most


def test_each_label_has_its_own_probability_and_a_label_on_all_texts_has_1() -> None:
    texts, class_T = topic_texts(300)
    is_true_TC = np.stack([class_T == 0, class_T != 2, class_T >= 0], axis=1)
    (shares,) = scores.tfidf_label_shares(texts, is_true_TC.astype(np.float32), np.mean, [texts])
    assert ((shares[:, :2] > 0.5) == is_true_TC[:, :2]).mean() > 0.95
    assert (shares[:, 2] == 1).all()


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


def often_and_rarely(num_texts: int) -> Records:
    return [{"text": f"the model {n}", "label": "often" if n % 5 else "rarely"} for n in range(num_texts)]


def test_label_sets_are_learned_and_stock_classes_give_them_as_the_confusion_counts_them(
    small_encoder: Path, tmp_path: Path
) -> None:
    data = write_rows(tmp_path / "data.jsonl", labels_behind_is(900, 0, 1, 1, 2))
    params = params_of("classification", **SIZES, multi_label=True)
    out = fine_tune(params, tmp_path / "out", encoder=small_encoder, data=data, seed=1)
    metrics, headline = metrics_of(out), metrics_of(out)["headline"]
    assert (headline["metric"], headline["baseline"]) == ("micro_f1", "TF-IDF + logistic regression")
    assert headline["value"] == metrics["micro_f1"] > headline["baseline_value"] + 0.1 > headline["trivial_value"] + 0.1
    assert headline["low"] < headline["value"] <= headline["high"]
    model = AutoModelForSequenceClassification.from_pretrained(out / "model").eval()
    assert model.config.problem_type == "multi_label_classification"
    assert model.config.decision_threshold == metrics["decision_threshold"]
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
    assert 2 * num_right / num_named == pytest.approx(metrics["micro_f1"]), "every label is counted"


def test_pairs_are_encoded_as_one_row_with_their_own_token_types_if_the_family_has_them(
    prepare: Prepare, save_trained: Callable[[Any], Path], tmp_path: Path
) -> None:
    pairs = [record | {"second": record["label"]} for record in labels_behind_is(60, 1)]
    bert = save_trained(with_random_weights("BertForMaskedLM", small_bert()))
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


def test_the_f1_of_one_label_can_be_the_headline(prepare: Prepare) -> None:
    records = often_and_rarely(300)
    for label in ("rarely", "often"):
        report = prepare(records, metric="f1", positive_label=label).test()
        assert report.headline.metric == "f1"
        assert report.headline.value == report.figures["f1"] == report.per_class[label]["f1"]
        trivial = report.headline.trivial_value
        assert trivial == report.figures["majority_f1"]
        assert trivial > 0.8 if label == "often" else trivial == 0, "the largest class is `often`"
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
        for metric in () if case[0] else ("macro_f1", "matthews"):
            top = with_odd(({"metric": metric}, {}), small_encoder, tmp_path / metric, "odd").test().headline
            assert (top.metric, top.low <= top.value <= top.high < 1) == (metric, True)
            assert metric != "matthews" or top.trivial_value == 0
    else:  # the best score is that of an answer that finds all labels but "odd"
        report = with_odd(case, small_encoder, tmp_path / "both", "odd|a").test()
        everything = 2 * (30 + NUM_ODD) / (30 + 2 * NUM_ODD + 30 + NUM_ODD)
        for key in ("micro_f1", "baseline_tfidf_micro_f1", "majority_micro_f1"):
            assert 0 < report.figures[key] <= everything + 1e-9, key
        assert report.confusion.count(("odd", "(none)")) == NUM_ODD
        assert report.figures["exact_match"] <= 30 / (30 + NUM_ODD)


def test_windows_of_long_texts_keep_their_labels(prepare: Prepare) -> None:
    records = [{"text": f"{word} " * length, "label": word} for word in WORDS for length in range(9, 29)]
    shown: dict[int, set[int]] = {0: set(), 1: set(), 2: set()}
    for batch in islice(prepare(records, train_length=8, batch_size=4).batches_from(0, 0), 24):
        assert batch.inputs.input_ids_BL.shape[1] == 8
        for target, ids in zip(batch.inputs.targets_B.tolist(), batch.inputs.input_ids_BL, strict=True):
            shown[target] |= set(ids[1:-1].tolist())
    assert all(shown.values())
    assert sum(map(len, shown.values())) == len(set.union(*shown.values()))
