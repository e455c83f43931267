"""Claim: what can be learned is learned, judged on texts that nothing was chosen by, the same bytes each time."""

import csv
import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from clozeline.errors import DataError, TrainingError
from clozeline.model import language_model
from clozeline.model.families import TokenIds
from clozeline.params import ClassificationParams, read_params
from clozeline.tasks.classification.labelled import Labelled
from clozeline.tasks.classification.selection import select
from clozeline.tasks.classification.single_label import SingleLabel
from tests.fine_tuning import contents, fine_tune, metrics_of

PARAMS = read_params(Path(__file__).parents[2] / "params.yaml").finetune["library"]
TOPICS = {"cooking": "salt oven butter flour", "sailing": "mast keel tide rudder", "gardens": "soil seed root weed"}
FILLER = ["the", "a", "of", "and", "with", "then", "before", "after", "under", "over", "some", "more"]


class Killed(BaseException):
    pass


def topic_records(num_per_topic: int) -> list[dict[str, str]]:
    """Texts of which a few words give the topic away."""
    draw = random.Random(3)
    return [
        {"text": " ".join(draw.choice(words.split() + FILLER) for _ in range(draw.randint(6, 16))), "topic": topic}
        for _ in range(num_per_topic)
        for topic, words in TOPICS.items()
    ]


def params(**changes: object) -> ClassificationParams:
    values = PARAMS.model_dump() | {
        "text_field": "text",
        "label_field": "topic",
        "max_length": 32,
        "batch_size": 16,
        "epochs": 4,
        "optimizer": PARAMS.optimizer.model_dump() | {"learning_rate": 0.01},
        "num_threads": 1,
    }
    return ClassificationParams.model_validate(values | changes)


Finetune = Callable[..., Path]


@pytest.fixture
def run(small_encoder: Path, tmp_path: Path) -> Finetune:
    """`run(name, **changes)` runs the stage and returns the folder of all it wrote."""
    records = topic_records(150)
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "data.parquet")

    def run(
        name: str,
        *,
        encoder: Path = small_encoder,
        seed: int = 7,
        pretraining_texts: Sequence[str] = ("something else",),
        **changes: object,
    ) -> Path:
        return fine_tune(
            params(**changes),
            tmp_path / name,
            encoder=encoder,
            data=tmp_path / "data.parquet",
            seed=seed,
            pretraining_texts=pretraining_texts,
        )

    return run


def rows_of(folder: Path) -> list[list[str]]:
    with (folder / "confusion.csv").open(newline="") as file:
        return list(csv.reader(file))


def classes_of(folder: Path) -> dict[str, dict[str, str]]:
    with (folder / "classes.csv").open(newline="") as file:
        return {row["class"]: row for row in csv.DictReader(file)}


def test_a_task_that_can_be_learned_is_learned(run: Finetune) -> None:
    metrics = metrics_of(run("out"))
    assert metrics["accuracy"] > 0.7
    assert metrics["accuracy_low"] < metrics["accuracy"] < metrics["accuracy_high"]
    assert metrics["majority_accuracy"] < 0.5
    assert metrics["baseline_tfidf_accuracy"] > 0.9


def test_an_encoder_that_detects_replaced_tokens_is_fine_tuned_as_any_other(
    run: Finetune, small_encoder: Path, tmp_path: Path
) -> None:
    """It goes on from the discriminator's weights, and a step changes none of them by more than a learning rate."""
    (tmp_path / "tokenizer").mkdir()
    for file in small_encoder.glob("*token*"):
        shutil.copyfile(file, tmp_path / "tokenizer" / file.name)
    project = read_params(Path(__file__).parents[2] / "params.yaml").pretrain.model
    electra = project.model_copy(update={"family": "electra"})
    pair = language_model.build(electra, "rtd", TokenIds(90, pad_id=0, cls_id=2, sep_id=3), seed=0)
    torch.nn.init.normal_(pair.base_model.embeddings.word_embeddings.weight, std=1.0)
    (tmp_path / "pair").mkdir()
    language_model.save(pair, tmp_path / "tokenizer", tmp_path / "pair")
    out = run("out", encoder=tmp_path / "pair", epochs=1)
    assert 0 < metrics_of(out)["accuracy"] < 1
    stock = AutoModelForSequenceClassification.from_pretrained(out / "model", local_files_only=True)
    before_VH = pair.base_model.embeddings.word_embeddings.weight
    assert 0 < (stock.get_input_embeddings().weight - before_VH).abs().max() < 0.5


def test_figures_of_each_class_stand_in_a_table_of_their_own(run: Finetune) -> None:
    out = run("out", epochs=1)
    classes = classes_of(out)
    assert set(classes) == set(TOPICS)
    shown = [float(of_class["f1"]) for of_class in classes.values()]
    assert np.mean(shown) == pytest.approx(metrics_of(out)["macro_f1"])
    assert not any(topic in key for topic in TOPICS for key in metrics_of(out)), "a column of `dvc metrics show` each"


def test_the_headline_is_the_accuracy_beside_its_baselines(run: Finetune) -> None:
    metrics = metrics_of(run("out", epochs=1))
    headline = metrics["headline"]
    assert (headline["metric"], headline["value"]) == ("accuracy", metrics["accuracy"])
    assert headline["low"] < headline["value"] < headline["high"]
    assert headline["baseline_value"] == metrics["baseline_tfidf_accuracy"]
    assert headline["trivial_value"] == metrics["majority_accuracy"]


def test_some_test_texts_are_shown_with_what_was_right_and_what_was_said(run: Finetune) -> None:
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


def test_the_confusion_table_is_the_accuracy_in_full(run: Finetune) -> None:
    out = run("out", epochs=1)
    header, *rows = rows_of(out)
    assert header == ["actual", "predicted"]
    assert np.mean([actual == predicted for actual, predicted in rows]) == pytest.approx(metrics_of(out)["accuracy"])
    sizes = {label: int(of_class["num_texts"]) for label, of_class in classes_of(out).items()}
    assert Counter(actual for actual, _ in rows) == sizes


def test_stock_transformers_gives_the_answers_that_were_judged(run: Finetune) -> None:
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


def test_a_killed_run_goes_on_and_ends_with_the_same_bytes(
    run: Finetune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run("whole")
    judge, asked = SingleLabel.validation_score, iter(range(10))

    def killed_once(task: SingleLabel) -> float:
        if next(asked) == 2:
            raise Killed
        return judge(task)

    monkeypatch.setattr(SingleLabel, "validation_score", killed_once)
    with pytest.raises(Killed):
        run("parts")
    assert len(list((tmp_path / "work" / "small").glob("*/step-*"))) == 1
    assert contents(run("parts")) == contents(whole)
    assert next(asked) == 5
    assert list((tmp_path / "work" / "small").iterdir()) == []


def test_the_best_of_several_seeds_is_kept_by_validation_and_their_spread_is_told(
    run: Finetune, tmp_path: Path
) -> None:
    told = metrics_of(out := run("out", epochs=2, num_seeds=3))
    alone = [run(f"seed {seed}", seed=seed, epochs=2) for seed in (7, 8, 9)]
    figures = [metrics_of(folder) for folder in alone]
    values = [figure["headline"]["value"] for figure in figures]
    spread = told.pop("over_seeds")
    assert spread["mean"] == pytest.approx(np.mean(values))
    assert spread["deviation"] == pytest.approx(np.std(values, ddof=1))
    assert (spread["num_seeds"], spread["lowest"], spread["highest"]) == (3, min(values), max(values))
    best = max(range(3), key=lambda place: figures[place]["validation_score"])
    assert spread["best_seed"] == 7 + best
    assert told == figures[best]
    assert contents(out / "model") == contents(alone[best] / "model")
    assert list((tmp_path / "work" / "small").iterdir()) == []


def test_parts_of_a_batch_that_fit_into_memory_give_the_figures_of_the_whole(run: Finetune) -> None:
    whole, parts = run("whole", epochs=1), run("parts", epochs=1, micro_batch_tokens=64)
    assert contents(whole)["model/model.safetensors"] != contents(parts)["model/model.safetensors"]
    assert metrics_of(whole) == metrics_of(parts)


KNOBS = {
    "rates that fall with depth": {"layer_decay": 0.5},
    "frozen layers": {"frozen_layers": 1},
    "adapters": {"lora": {"rank": 4, "alpha": 8, "dropout": 0.0}},
    "looks inside an epoch": {"looks_per_epoch": 2, "patience": 3},
}


@pytest.mark.parametrize("name", KNOBS)
def test_a_knob_of_training_is_heard_and_the_task_still_learned(run: Finetune, small_encoder: Path, name: str) -> None:
    out = run("out", epochs=2, **KNOBS[name])
    assert metrics_of(out)["accuracy"] > 0.6 > metrics_of(out)["majority_accuracy"]
    model = AutoModelForSequenceClassification.from_pretrained(out / "model")
    encoder = AutoModelForSequenceClassification.from_pretrained(small_encoder)
    before, after = encoder.base_model.state_dict(), model.base_model.state_dict()
    same = {key for key, weight in after.items() if torch.equal(weight, before[key])}
    low = {key for key in after if "embeddings" in key or "layers.0." in key}
    assert (low <= same) == (name == "frozen layers")
    assert {key for key in after if "norm" in key} <= same or name in {
        "rates that fall with depth",
        "looks inside an epoch",
        "frozen layers",
    }


def test_a_checkpoint_of_other_params_is_not_gone_on_with(
    run: Finetune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = run("fresh", batch_size=8)

    asked = iter(range(10))

    def killed_late(task: SingleLabel) -> float:
        if next(asked) == 2:
            raise Killed
        return 0.5

    with monkeypatch.context() as patch:
        patch.setattr(SingleLabel, "validation_score", killed_late)
        with pytest.raises(Killed):
            run("left", batch_size=16)
    assert contents(run("after", batch_size=8)) == contents(fresh)


def test_the_test_part_has_no_say_in_the_model(run: Finetune, tmp_path: Path) -> None:
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
    assert contents(before / "model") == contents(after / "model")
    assert metrics_of(after)["accuracy"] < 0.5 < metrics_of(before)["accuracy"]


def test_long_texts_are_counted(run: Finetune) -> None:
    metrics = metrics_of(run("out", max_length=10, epochs=1))
    assert metrics["num_truncated_train"] > metrics["num_truncated_test"] > 0
    assert metrics_of(run("whole", max_length=64, epochs=1))["num_truncated_train"] == 0


def test_test_texts_that_the_encoder_has_seen_are_counted(run: Finetune) -> None:
    texts = [record["text"].upper() for record in topic_records(150)]
    metrics = metrics_of(run("out", pretraining_texts=texts, epochs=1))
    assert metrics["num_test_seen_in_pretraining"] == metrics["num_test"]
    assert metrics["num_test_near_duplicates_in_pretraining"] == metrics["num_test"]
    assert metrics["contaminated_fraction"] == 1.0


def test_test_texts_that_the_task_itself_was_nearly_trained_on_are_counted(run: Finetune, tmp_path: Path) -> None:
    assert metrics_of(run("out", epochs=1))["num_test_near_duplicates_in_train"] == 0
    long = [{**record, "text": f"{record['text']} {record['text'][::-1]}"} for record in topic_records(30)]
    twins = [{**record, "text": f"{record['text']} then"} for record in long]
    pq.write_table(pa.Table.from_pylist([*long, *twins]), tmp_path / "data.parquet")
    metrics = metrics_of(run("twins", epochs=1))
    assert 10 < metrics["num_test_near_duplicates_in_train"] < metrics["num_test"]
    assert metrics["records"]["duplicates"] == 0


def test_training_that_diverges_says_so_and_leaves_what_was_there(run: Finetune) -> None:
    out = run("out", epochs=1)
    before = contents(out)
    with pytest.raises(TrainingError, match="diverged"):
        run("out", epochs=1, optimizer=PARAMS.optimizer.model_dump() | {"learning_rate": 1e30, "clip_norm": 1e30})
    assert contents(out) == before


def test_too_few_texts_are_told_before_any_training(run: Finetune, tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(topic_records(1)), tmp_path / "data.parquet")
    with pytest.raises(DataError, match="too few labelled texts"):
        run("out")
    assert not (tmp_path / "out").exists()
