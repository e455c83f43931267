"""Claim: a learnable task is learned; its figures are complete, and come with baselines and counts.

The model is that of the best validation pass, loads in stock classes, ignores the test split, and is reproducible: a
killed training resumes, one of several seeds or rates goes on as if it were the only one, and every knob takes effect.
"""

import csv
import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from clozeline.records.finetune.task_metrics import TaskMetrics
from clozeline.stages import finetune
from clozeline.system.errors import DataError, TrainingError
from clozeline.tasks.classification.texts import SingleLabel
from clozeline.tasks.training import CLEARLY, BestValidation
from clozeline.training.loop import Loop
from tests.make.packages import card_in
from tests.make.tasks import contents, fine_tune, keep_last_weights, metrics_of, without_card
from tests.make.topics import PARAMS, TOPICS, params, topic_records

Finetune = Callable[..., Path]
# The learning rate with which the tests train, and a multiple of it.
RATE, LOWER = 0.01, 0.01
RECORDS = topic_records(150)


def runs_in(folder: Path, encoder: Path) -> Finetune:
    """`run(name, **changes)` runs the stage on 450 texts, or the given records, and an encoder with a card; it returns
    its output folder, `folder`/`name`.
    """
    encoder = Path(shutil.copytree(encoder, folder / "encoder"))
    (encoder / "README.md").write_text("---\nlicense: mit\n---\n# Encoder\n\n## Base model\n\n- someone/bert\n")

    def run(
        name: str, *, seed: int = 7, only_seed: int | None = None, records: Sequence[Any] = RECORDS, **changes: Any
    ) -> Path:
        pq.write_table(pa.Table.from_pylist(records), folder / "data.parquet")
        seen = {"pretraining_texts": changes.pop("pretraining_texts")} if "pretraining_texts" in changes else {}
        optimizer = PARAMS.optimizer.model_dump() | {"learning_rate": RATE} | changes.pop("optimizer", {})
        given = {"encoder": encoder, "data": folder / "data.parquet", "seed": seed, "only_seed": only_seed, **seen}
        return fine_tune(params(**{"num_examples": 6, **changes}, optimizer=optimizer), folder / name, **given)

    return run


@pytest.fixture
def run(small_encoder: Path, tmp_path: Path) -> Finetune:
    return runs_in(tmp_path, small_encoder)


@pytest.fixture(scope="module")
def learned(small_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the stage made of the task; tests only look at it."""
    return runs_in(tmp_path_factory.mktemp("learned"), small_encoder)("out")


@pytest.fixture(scope="module")
def of_two_rates(small_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs_in(tmp_path_factory.mktemp("rates"), small_encoder)("whole", rate_factors=[LOWER, 1.0], epochs=3)


def rows_of(folder: Path, table: str) -> list[dict[str, str]]:
    with (folder / f"{table}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def scores_of(folder: Path) -> list[float]:
    return [float(row["validation_score"]) for row in rows_of(folder, "validation")]


def test_a_task_that_can_be_learned_is_learned_and_its_figures_agree_with_its_tables_and_card(learned: Path) -> None:
    metrics, headline, records = (metrics_of(learned), *map(metrics_of(learned).get, ("headline", "records")))
    assert metrics["accuracy"] > 0.7 > 0.5 > metrics["majority_accuracy"]
    assert metrics["baseline_tfidf_accuracy"] > 0.9
    assert (headline["metric"], headline["value"]) == ("accuracy", metrics["accuracy"])
    assert headline["low"] < headline["value"] < headline["high"]
    assert headline["baseline_value"] == metrics["baseline_tfidf_accuracy"]
    assert headline["trivial_value"] == metrics["majority_accuracy"]
    assert records["num_read"] == 450 == sum(count for name, count in records.items() if name != "num_read")
    assert sum(metrics[f"num_{part}"] for part in ("train", "validation", "test")) == records["num_used"]
    assert metrics["num_test_seen_in_pretraining"] == 0 == metrics["contaminated_fraction"]
    assert "without_near_duplicates" not in headline
    classes = {row["class"]: row for row in rows_of(learned, "classes")}
    assert set(classes) == set(TOPICS)
    assert np.mean([float(of_class["f1"]) for of_class in classes.values()]) == pytest.approx(metrics["macro_f1"])
    answers = rows_of(learned, "confusion")
    assert np.mean([row["actual"] == row["predicted"] for row in answers]) == pytest.approx(metrics["accuracy"])
    sizes = {label: int(of_class["num_texts"]) for label, of_class in classes.items()}
    assert Counter(row["actual"] for row in answers) == sizes
    losses, validations = rows_of(learned, "training"), rows_of(learned, "validation")
    assert float(losses[-1]["loss"]) < float(losses[0]["loss"])
    assert [float(it["epoch"]) for it in validations] == [0, 1, 2, 3, 4]
    assert validations[-1]["step"] == losses[-1]["step"]
    assert max(scores_of(learned)) == metrics["validation_score"]
    card = card_in(learned / "model")
    told = f"{headline['value']:.4f} ({headline['low']:.4f} to {headline['high']:.4f})"
    assert f"| {headline['method']} | {told} |" in card.sections["Figures"]
    assert hashlib.sha256((learned.parent / "data.parquet").read_bytes()).hexdigest() in card.sections["Task"]
    assert (card.facts, card.sections["Base model"]) == ({"license": "mit"}, "- someone/bert")


def test_sample_test_texts_are_shown_with_their_label_and_the_answer_of_stock_transformers(learned: Path) -> None:
    shown = json.loads((learned / "examples" / "examples.json").read_text())
    told = {record["text"]: record["topic"] for record in RECORDS}
    texts = [item["given"]["text"] for item in shown]
    model = AutoModelForSequenceClassification.from_pretrained(learned / "model").eval()
    with torch.inference_mode():
        tokenizer = AutoTokenizer.from_pretrained(learned / "model")
        places = model(**tokenizer(texts, return_tensors="pt", padding=True, truncation=True)).logits.argmax(dim=1)
    assert [item["actual"] for item in shown] == [told[text] for text in texts]
    assert [item["predicted"] for item in shown] == [model.config.id2label[place] for place in places.tolist()]
    assert all(item["is_right"] == (item["actual"] == item["predicted"]) for item in shown)
    assert sum(item["is_right"] for item in shown) == 3, "as many right as wrong"


def test_a_model_that_learned_nothing_is_reported(
    run: Finetune, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SingleLabel, "logits", lambda self, part: np.zeros((len(part), len(self.labels))))
    metrics = metrics_of(out := run("out", epochs=3))
    alike, beaten, constant = [it.message for it in caplog.records if it.name == finetune.__name__][-3:]
    assert "at all 4 validation passes" in alike
    assert metrics["best_epoch"] == 3
    assert f"{metrics['accuracy']:.3f} is no better than TF-IDF" in beaten
    assert constant == f"small: the model answers `{metrics['only_answer']}` to every item of the test split"
    faults, limits = TaskMetrics.read(out / "metrics.json").faults, card_in(out / "model").sections["Limits"]
    assert faults
    assert all(f"- Known fault: {fault}." in limits for fault in faults)


def test_test_texts_seen_in_pre_training_or_near_a_training_text_are_counted(
    run: Finetune, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finetune, "hub_commit", lambda params: "0a" * 20)
    long = [{**record, "text": f"{record['text']} {record['text'][::-1]}"} for record in topic_records(30)]
    records = [*long, *({**record, "text": f"{record['text']} then"} for record in long)]
    seen = [record["text"].upper() for record in records]
    out = run("twins", epochs=1, records=[*records, {"text": " ", "topic": "cooking"}], pretraining_texts=seen)
    metrics, headline = metrics_of(out), metrics_of(out)["headline"]
    assert metrics["num_test_seen_in_pretraining"] == metrics["num_test"]
    assert metrics["num_test_near_duplicates_in_pretraining"] == metrics["num_test"]
    assert metrics["contaminated_fraction"] == 1.0
    num_near, others = metrics["num_test_near_duplicates_in_train"], headline["without_near_duplicates"]
    assert 10 < num_near < metrics["num_test"]
    num_right = others["value"] * (metrics["num_test"] - num_near)
    assert num_right == pytest.approx(round(num_right))
    assert 0 <= headline["value"] * metrics["num_test"] - num_right <= num_near
    assert f"{others['value']:.4f} ({others['low']:.4f} to" in card_in(out / "model").sections["Figures"]
    place = f"{out.parent / 'data.parquet'}, row {len(records) + 1}"
    assert (metrics["hub_commit"], metrics["first_places"]) == ("0a" * 20, {"without_text": place})


def test_a_training_that_diverges_or_has_too_few_texts_leaves_earlier_outputs_unchanged(run: Finetune) -> None:
    """A rate that diverges beside another is only not used."""
    before = contents(out := run("out", epochs=1, rate_factors=[1.0, 1e30]))
    metrics = metrics_of(out)
    assert (metrics["learning_rate"], metrics["rate_scores"]["1e+28"]) == (RATE, "NaN")
    with pytest.raises(TrainingError, match="diverged"):
        run("out", rate_factors=[1e30, 1.0])
    with pytest.raises(DataError, match="too few labelled texts"):
        run("out", epochs=1, records=topic_records(1))
    assert contents(out) == before


def test_the_rate_with_the_best_first_pass_goes_on_with_the_bytes_of_a_training_at_that_rate_alone(
    run: Finetune, learned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = {1.0: learned, LOWER: run("alone", rate_factors=[LOWER])}
    first = {factor: scores_of(folder)[1] for factor, folder in alone.items()}
    assert first[1.0] != first[LOWER], "the test needs rates that differ"
    best = max(first, key=first.__getitem__)
    for factors in ([1.0, LOWER], [LOWER, 1.0]):
        found = run(f"grid {factors}", rate_factors=factors)
        metrics = metrics_of(found)
        assert metrics.pop("rate_scores") == {str(factor * RATE): first[factor] for factor in factors}
        assert metrics == metrics_of(alone[best]), "a rate that is tried alone has no scores beside it"
        assert metrics["learning_rate"] == best * RATE
        assert without_card(found / "model") == without_card(alone[best] / "model")
        for name in ("training.csv", "validation.csv", "confusion.csv"):
            assert (found / name).read_bytes() == (alone[best] / name).read_bytes()
    # A later one needs a clear lead, and is named as people multiply: computed, 3.0 * 5e-5 is 0.00015000000000000001.
    for lead, kept in ((CLEARLY - 0.01, "5e-05"), (CLEARLY + 0.01, "0.00015")):
        with monkeypatch.context() as patch:
            patch.setattr(BestValidation, "trial", lambda it, _, lead=lead: 0.5 + lead * (it.learning_rate > 1e-4))
            made = run(f"lead {lead}", rate_factors=[1.0, 3.0], epochs=1, optimizer={"learning_rate": 5e-5})
        assert str(metrics_of(made)["learning_rate"]) == kept


FROZEN, DECAYED = {"frozen_layers": 1}, {"layer_decay": 0.01}
ADAPTED = {"lora": {"rank": 4, "alpha": 8, "dropout": 0.1}}


@pytest.mark.parametrize("knob", [FROZEN, ADAPTED, DECAYED])
def test_frozen_layers_adapters_and_falling_rates_work_and_are_as_if_the_rate_had_been_alone(
    run: Finetune, small_encoder: Path, knob: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_last_weights(monkeypatch)  # and so the last rate
    grid = run("grid", rate_factors=[LOWER, 1.0], epochs=2, **knob)
    alone = run("alone", rate_factors=[1.0], epochs=2, **knob)
    assert metrics_of(grid)["learning_rate"] == metrics_of(alone)["learning_rate"] == RATE
    assert without_card(grid / "model") == without_card(alone / "model")
    assert (grid / "training.csv").read_bytes() == (alone / "training.csv").read_bytes()
    assert metrics_of(alone)["accuracy"] > 0.6 > metrics_of(alone)["majority_accuracy"]
    opened = (AutoModelForSequenceClassification.from_pretrained(it) for it in (small_encoder, alone / "model"))
    before, after = (model.base_model.state_dict() for model in opened)
    change = {key: float((weight - before[key]).abs().max()) for key, weight in after.items()}
    low = {key for key in after if "embeddings" in key or "layers.0." in key}
    assert all(change[key] == 0 for key in low) == (knob is FROZEN)
    assert all(change[key] == 0 for key in after if "norm" in key) == (knob is ADAPTED)
    if knob is DECAYED:
        assert 10 * max(change[key] for key in low) < max(change[key] for key in after.keys() - low)


class Killed(BaseException):
    pass


def kill_at(number: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Kill the training before the validation pass with this number, from 0; return the numbers that are left."""
    judge, asked = SingleLabel.validation_score, iter(range(100))

    def killed_once(task: SingleLabel) -> float:
        if next(asked) == number:
            raise Killed
        return judge(task)

    monkeypatch.setattr(SingleLabel, "validation_score", killed_once)
    return asked


@pytest.mark.parametrize("kills_at", [1, 2, 5])
def test_a_run_killed_in_a_trial_or_after_it_resumes_to_the_same_bytes(
    run: Finetune, of_two_rates: Path, kills_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Validation passes: before and after the first epoch at each rate, then after each further epoch."""
    asked, num_passes = kill_at(kills_at, monkeypatch), 6
    with pytest.raises(Killed):
        run("parts", rate_factors=[LOWER, 1.0], epochs=3)
    assert contents(run("parts", rate_factors=[LOWER, 1.0], epochs=3)) == contents(of_two_rates)
    assert next(asked) - num_passes <= 2, "at most one pass before and one after the epoch that was cut off"
    assert list((tmp_path / "work" / "small").iterdir()) == []


def test_the_best_of_several_seeds_is_kept_by_validation_and_their_spread_is_reported(
    run: Finetune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = {"epochs": 2, "num_seeds": 3}
    whole = run("whole", **seeds)
    alone = [run(f"seed {seed}", seed=seed, epochs=2) for seed in (7, 8, 9)]
    figures = [metrics_of(folder) for folder in alone]
    values = [figure["headline"]["value"] for figure in figures]
    told = metrics_of(whole)
    spread = told.pop("over_seeds")
    assert spread["mean"] == pytest.approx(np.mean(values))
    assert spread["deviation"] == pytest.approx(np.std(values, ddof=1))
    assert (spread["num_seeds"], spread["lowest"], spread["highest"]) == (3, min(values), max(values))
    best = max(range(3), key=lambda place: figures[place]["validation_score"])
    assert (spread["best_seed"], told) == (7 + best, figures[best])
    assert without_card(whole / "model") == without_card(alone[best] / "model")
    for name in ("training.csv", "validation.csv"):
        assert (whole / name).read_bytes() == (alone[best] / name).read_bytes()

    for seed in (9, 7, 8):  # trained alone in any order
        run("parts", only_seed=seed, **seeds)
        assert not (tmp_path / "parts").exists()
    monkeypatch.setattr(Loop, "run", None)  # whatever is left to train would fail
    assert contents(run("parts", **seeds)) == contents(whole)
    assert list((tmp_path / "work" / "small").iterdir()) == []
