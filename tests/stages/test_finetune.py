"""Claim: a learnable task is learned; its figures are complete, and come with baselines and counts.

The model is that of the best validation pass, loads in stock classes, ignores the test split, and is reproducible: a
killed training resumes, one of several seeds or rates goes on as if it were the only one, and every knob takes effect.
"""

import csv
import hashlib
import json
import logging
import re
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

from clozeline.encoder.families.layout import TokenIds
from clozeline.language import models
from clozeline.params.reading import read_params
from clozeline.records.finetune.task_metrics import Headline, TaskMetrics
from clozeline.records.words.shingles import Contamination
from clozeline.stages import finetune
from clozeline.system.errors import DataError, TrainingError
from clozeline.tasks.classification.data import select
from clozeline.tasks.classification.texts import SingleLabel
from clozeline.tasks.files import LabelledRecord, Part
from clozeline.tasks.task import TaskReport
from clozeline.tasks.training import CLEARLY, BestValidation
from clozeline.training.loop import Loop
from tests.make.packages import card_in
from tests.make.tasks import contents, fine_tune, keep_last_weights, metrics_of, without_card
from tests.make.topics import PARAMS, TOPICS, params, topic_records

Finetune = Callable[..., Path]


def runs_in(folder: Path, encoder: Path) -> Finetune:
    """`run(name, **changes)` runs the stage on 450 texts and returns its output folder, `folder`/`name`."""
    pq.write_table(pa.Table.from_pylist(topic_records(150)), folder / "data.parquet")

    def run(name: str, *, seed: int = 7, only_seed: int | None = None, **changes: Any) -> Path:
        others = {key: changes.pop(key) for key in ("encoder", "pretraining_texts") & changes.keys()}
        given = {"encoder": encoder, "data": folder / "data.parquet", "seed": seed, "only_seed": only_seed, **others}
        return fine_tune(params(**changes), folder / name, **given)

    return run


@pytest.fixture
def run(small_encoder: Path, tmp_path: Path) -> Finetune:
    return runs_in(tmp_path, small_encoder)


@pytest.fixture(scope="module")
def learned(small_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the stage made of the task; tests only look at it."""
    return runs_in(tmp_path_factory.mktemp("learned"), small_encoder)("out")


@pytest.fixture(scope="module")
def hurried(small_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one epoch makes of it from an encoder with a card, with six items shown; tests only look at it."""
    folder = tmp_path_factory.mktemp("hurried")
    encoder = Path(shutil.copytree(small_encoder, folder / "encoder"))
    (encoder / "README.md").write_text("---\nlicense: mit\n---\n# Encoder\n\n## Base model\n\n- someone/bert\n")
    return runs_in(folder, encoder)("out", epochs=1, num_examples=6)


def rows_of(folder: Path) -> list[list[str]]:
    with (folder / "confusion.csv").open(newline="") as file:
        return list(csv.reader(file))


def classes_of(folder: Path) -> dict[str, dict[str, str]]:
    with (folder / "classes.csv").open(newline="") as file:
        return {row["class"]: row for row in csv.DictReader(file)}


def test_a_task_that_can_be_learned_is_learned(learned: Path) -> None:
    metrics = metrics_of(learned)
    assert metrics["accuracy"] > 0.7
    assert metrics["accuracy_low"] < metrics["accuracy"] < metrics["accuracy_high"]
    assert metrics["majority_accuracy"] < 0.5
    assert metrics["baseline_tfidf_accuracy"] > 0.9


def test_figures_of_each_class_have_their_own_table(learned: Path) -> None:
    classes, metrics = classes_of(learned), metrics_of(learned)
    assert set(classes) == set(TOPICS)
    assert np.mean([float(of_class["f1"]) for of_class in classes.values()]) == pytest.approx(metrics["macro_f1"])
    assert not any(topic in key for topic in TOPICS for key in metrics), "each would be a metrics column"


def test_the_headline_is_the_accuracy_with_its_baselines(learned: Path) -> None:
    metrics, headline = metrics_of(learned), metrics_of(learned)["headline"]
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


def test_the_model_card_has_the_figures_the_data_and_the_encoder(hurried: Path) -> None:
    card, headline = card_in(hurried / "model"), metrics_of(hurried)["headline"]
    told = f"{headline['value']:.4f} ({headline['low']:.4f} to {headline['high']:.4f})"
    assert f"| {headline['method']} | {told} |" in card.sections["Figures"]
    assert f"| largest class | {headline['trivial_value']:.4f} |" in card.sections["Figures"]
    assert hashlib.sha256((hurried.parent / "data.parquet").read_bytes()).hexdigest() in card.sections["Task"]
    assert card.facts == {"license": "mit"}
    assert card.sections["Base model"] == "- someone/bert"


def test_the_model_card_lists_the_known_faults_of_the_model(run: Finetune) -> None:
    out = run("out", epochs=1, frozen_layers=0, warmup_fraction=1.0)
    faults = TaskMetrics.read(out / "metrics.json").faults
    card = card_in(out / "model")
    assert faults
    assert all(f"- Known fault: {fault}." in card.sections["Limits"] for fault in faults)


def test_sample_test_texts_are_written_with_actual_and_predicted_label(hurried: Path) -> None:
    shown = json.loads((hurried / "examples" / "examples.json").read_text())
    told = {record["text"]: record["topic"] for record in topic_records(150)}
    assert len(shown) == 6
    assert all(item["actual"] == told[item["given"]["text"]] for item in shown)
    assert all(item["is_right"] == (item["actual"] == item["predicted"]) for item in shown)
    assert {item["is_right"] for item in shown} == {True, False}


def test_the_counts_add_up(learned: Path) -> None:
    metrics = metrics_of(learned)
    records = metrics["records"]
    assert records["num_read"] == 450 == sum(count for name, count in records.items() if name != "num_read")
    assert sum(metrics[f"num_{part}"] for part in ("train", "validation", "test")) == records["num_used"]
    assert metrics["num_test_seen_in_pretraining"] == 0 == metrics["contaminated_fraction"]
    assert metrics["num_test_near_duplicates_in_train"] == 0
    assert "without_near_duplicates" not in metrics["headline"]


def test_the_confusion_table_agrees_with_the_accuracy(learned: Path) -> None:
    header, *rows = rows_of(learned)
    assert header == ["actual", "predicted"]
    right = np.mean([actual == predicted for actual, predicted in rows])
    assert right == pytest.approx(metrics_of(learned)["accuracy"])
    sizes = {label: int(of_class["num_texts"]) for label, of_class in classes_of(learned).items()}
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


def test_an_encoder_that_detects_replaced_tokens_is_fine_tuned_as_any_other(
    run: Finetune, small_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It starts from the discriminator's weights; a step changes each by at most the learning rate."""
    (tmp_path / "tokenizer").mkdir()
    for file in small_encoder.glob("*token*"):
        shutil.copyfile(file, tmp_path / "tokenizer" / file.name)
    project = read_params(Path(__file__).parents[2] / "params.yaml").pretrain.model
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


def test_stock_transformers_gives_the_evaluated_answers(learned: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(learned / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(learned / "model")
    _, *rows = rows_of(learned)
    records: list[tuple[Part, LabelledRecord]] = [("train", LabelledRecord(it, "here")) for it in topic_records(150)]
    of_test = select(records, params()).test
    inputs = tokenizer([example.text for example in of_test], return_tensors="pt", padding=True, truncation=True)
    with torch.inference_mode():
        places = model(**inputs).logits.argmax(dim=1).tolist()
    assert rows == [[e.label, model.config.id2label[place]] for e, place in zip(of_test, places, strict=True)]


def test_two_runs_write_the_same_bytes_and_another_seed_does_not(run: Finetune, learned: Path) -> None:
    assert contents(run("again")) == contents(learned)
    other = contents(run("other", seed=8))
    assert contents(learned)["model/model.safetensors"] != other["model/model.safetensors"]


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


RATE = 0.01
LOWER = 0.01
"""Multiple of the rate with which the tests train."""


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


def test_the_rate_with_the_best_first_pass_goes_on_with_the_bytes_of_a_training_at_that_rate_alone(
    run: Finetune, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    alone = {factor: run(f"alone {factor}", rate_factors=[factor]) for factor in (1.0, LOWER)}
    first = {factor: scores_of_validation(folder)[1] for factor, folder in alone.items()}
    assert first[1.0] != first[LOWER], "the test needs rates that differ"
    best = max(first, key=first.__getitem__)
    for factors in ([1.0, LOWER], [LOWER, 1.0]):
        found = run(f"grid {factors}", rate_factors=factors)
        assert f"learning rate {best * RATE} is kept" in caplog.text
        metrics, of_best = metrics_of(found), metrics_of(alone[best])
        assert metrics.pop("rate_scores") == {str(factor * RATE): first[factor] for factor in factors}
        assert metrics == of_best, "a rate that is tried alone has no scores beside it"
        assert metrics["learning_rate"] == best * RATE
        assert without_card(found / "model") == without_card(alone[best] / "model")
        for name in ("training.csv", "validation.csv", "confusion.csv"):
            assert (found / name).read_bytes() == (alone[best] / name).read_bytes()


@pytest.mark.parametrize("knob", [{"frozen_layers": 1}, {"lora": {"rank": 4, "alpha": 8, "dropout": 0.1}}])
def test_frozen_layers_and_adapters_are_as_if_the_rate_had_been_alone(
    run: Finetune, knob: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_last_weights(monkeypatch)  # and so the last rate
    grid = run("grid", rate_factors=[LOWER, 1.0], epochs=2, **knob)
    alone = run("alone", rate_factors=[1.0], epochs=2, **knob)
    assert metrics_of(grid)["learning_rate"] == metrics_of(alone)["learning_rate"] == RATE
    assert without_card(grid / "model") == without_card(alone / "model")
    assert (grid / "training.csv").read_bytes() == (alone / "training.csv").read_bytes()


def scores_of_validation(folder: Path) -> list[float]:
    with (folder / "validation.csv").open(newline="") as file:
        return [float(row["validation_score"]) for row in csv.DictReader(file)]


@pytest.mark.parametrize(("lead", "kept"), [(0.0, LOWER), (CLEARLY - 0.01, LOWER), (CLEARLY + 0.01, 1.0)])
def test_another_rate_than_the_first_needs_a_clear_lead(
    run: Finetune, lead: float, kept: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BestValidation, "trial", lambda it, callback: 0.5 + lead if it.learning_rate == RATE else 0.5)
    assert metrics_of(run("out", rate_factors=[LOWER, 1.0]))["learning_rate"] == kept * RATE


def test_log_and_metrics_name_the_rate_as_people_multiply(
    run: Finetune, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(BestValidation, "trial", lambda it, callback: it.learning_rate * 1000)
    optimizer = PARAMS.optimizer.model_dump() | {"learning_rate": 5e-5}
    metrics = metrics_of(run("out", rate_factors=[1.0, 3.0], epochs=1, optimizer=optimizer))
    assert (metrics["learning_rate"], 3.0 * 5e-5) == (0.00015, 0.00015000000000000001)
    assert list(metrics["rate_scores"]) == ["5e-05", "0.00015"]
    assert "learning rate 0.00015 is kept: 0.0500 at 5e-05, 0.1500 at 0.00015" in caplog.text


@pytest.fixture(scope="module")
def of_two_rates(small_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs_in(tmp_path_factory.mktemp("rates"), small_encoder)("whole", rate_factors=[LOWER, 1.0], epochs=3)


@pytest.mark.parametrize("kills_at", range(7))
def test_a_run_killed_in_a_trial_or_after_it_resumes_to_the_same_bytes(
    run: Finetune, of_two_rates: Path, kills_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Validation passes: before and after the first epoch at each rate, then after each further epoch."""
    asked, num_passes = kill_at(kills_at, monkeypatch), 6
    if kills_at < num_passes:
        with pytest.raises(Killed):
            run("parts", rate_factors=[LOWER, 1.0], epochs=3)
    assert contents(run("parts", rate_factors=[LOWER, 1.0], epochs=3)) == contents(of_two_rates)
    assert next(asked) - num_passes <= 2, "at most one pass before and one after the epoch that was cut off"


def test_a_rate_that_diverges_is_not_used_and_alone_it_ends_the_training(
    run: Finetune, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = metrics_of(run("grid", rate_factors=[1.0, 1e30]))
    assert metrics["learning_rate"] == RATE
    assert (list(metrics["rate_scores"]), metrics["rate_scores"]["1e+28"]) == (["0.01", "1e+28"], "NaN")
    assert "learning rate 1e+28 is not used" in caplog.text
    with pytest.raises(TrainingError):
        run("alone", rate_factors=[1e30, 1.0])


def test_the_default_project_trains_at_its_tuned_rate_alone() -> None:
    assert PARAMS.rate_factors == (1.0,)


CURVES = ("training.csv", "validation.csv")


def test_a_killed_run_resumes_and_ends_with_the_same_bytes(
    run: Finetune, learned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = kill_at(2, monkeypatch)
    with pytest.raises(Killed):
        run("parts")
    assert len(list((tmp_path / "work" / "small").rglob("step-*"))) == 1
    assert contents(run("parts")) == contents(learned)
    assert next(asked) == 6
    assert list((tmp_path / "work" / "small").iterdir()) == []


def test_seeds_trained_alone_in_any_order_give_the_bytes_of_one_run(
    run: Finetune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run("whole", epochs=2, num_seeds=3)
    for seed in (9, 7, 8):
        run("parts", epochs=2, num_seeds=3, only_seed=seed)
        assert not (tmp_path / "parts").exists()
    monkeypatch.setattr(Loop, "run", None)  # whatever is left to train would fail
    assert contents(run("parts", epochs=2, num_seeds=3)) == contents(whole)
    assert list((tmp_path / "work" / "small").iterdir()) == []


def test_the_best_of_several_seeds_is_kept_by_validation_and_their_spread_is_reported(
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
    assert without_card(out / "model") == without_card(alone[best] / "model")
    assert all((out / name).read_bytes() == (alone[best] / name).read_bytes() for name in CURVES)
    assert list((tmp_path / "work" / "small").iterdir()) == []


def test_loss_and_validation_curves_of_the_kept_model_are_written(learned: Path) -> None:
    losses, validations = ([*csv.DictReader((learned / name).read_text().splitlines())] for name in CURVES)
    assert float(losses[-1]["loss"]) < float(losses[0]["loss"])
    assert [float(it["epoch"]) for it in validations] == [0, 1, 2, 3, 4]
    assert validations[-1]["step"] == losses[-1]["step"]
    assert max(float(it["validation_score"]) for it in validations) == metrics_of(learned)["validation_score"]


def test_splitting_batches_for_memory_does_not_change_the_figures(
    run: Finetune, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_last_weights(monkeypatch)
    whole, parts = run("whole", epochs=1), run("parts", epochs=1, micro_batch_tokens=64)
    assert contents(whole)["model/model.safetensors"] != contents(parts)["model/model.safetensors"]
    assert metrics_of(whole) == metrics_of(parts)


KNOBS = {
    "rates that fall with depth": {"layer_decay": 0.5},
    "frozen layers": {"frozen_layers": 1},
    "adapters": {"lora": {"rank": 4, "alpha": 8, "dropout": 0.0}},
    "validations inside an epoch": {"validations_per_epoch": 2, "patience": 3},
}


@pytest.mark.parametrize("name", KNOBS)
def test_a_training_knob_takes_effect_and_the_task_is_still_learned(
    run: Finetune, small_encoder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_last_weights(monkeypatch)
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
        "validations inside an epoch",
        "frozen layers",
    }


def test_a_checkpoint_of_other_params_is_not_resumed(
    run: Finetune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = run("fresh", batch_size=8)
    with monkeypatch.context() as patch:
        kill_at(2, patch)
        with pytest.raises(Killed):
            run("left", batch_size=16)
    assert contents(run("after", batch_size=8)) == contents(fresh)


def test_the_last_log_line_is_the_headline_with_interval_and_baselines(
    run: Finetune, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        top = metrics_of(run("out", epochs=1))["headline"]
    at = next(place for place, told in enumerate(caplog.messages) if told.startswith("small: on the test split"))
    assert caplog.messages[at] == (
        f"small: on the test split accuracy {top['value']:.3f} (95 %: {top['low']:.3f} to {top['high']:.3f}); beside "
        f"it logistic regression on the frozen encoder {top['beside'][0]['value']:.3f}, "
        f"TF-IDF + logistic regression {top['baseline_value']:.3f}, largest class {top['trivial_value']:.3f}"
    )
    behind = [told for told in caplog.messages[at + 1 :] if "no better than" in told]
    assert len(behind) == (top["value"] <= top["baseline_value"])
    assert "largest class" not in "".join(behind)
    assert len(caplog.messages) == at + 1 + len(behind)
    assert not any("to every item" in told or "at all" in told for told in caplog.messages)


def test_a_model_that_learned_nothing_is_reported(
    run: Finetune, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SingleLabel, "logits", lambda self, part: np.zeros((len(part), len(self.labels))))
    metrics = metrics_of(run("out", epochs=3))
    told = [record.message for record in caplog.records if record.name == finetune.__name__][-3:]
    assert re.search(r"score is 0\.\d+ at all 4 validation passes", told[0])
    assert metrics["best_epoch"] == 3
    assert re.search(r"small: accuracy 0\.\d+ is no better than TF-IDF .* \(0\.\d+\)", told[1])
    assert told[2] == f"small: the model answers `{metrics['only_answer']}` to every item of the test split"


def test_the_metrics_hold_the_hub_commit_and_the_place_of_the_first_skipped_record(
    run: Finetune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finetune, "hub_commit", lambda params: "0a" * 20)
    records = [*topic_records(40), {"text": "", "topic": "cooking"}, {"text": " ", "topic": "cooking"}]
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "data.parquet")
    metrics = metrics_of(run("out", epochs=1))
    assert metrics["hub_commit"] == "0a" * 20
    assert metrics["first_places"] == {"without_text": f"{tmp_path / 'data.parquet'}, row 121"}


def test_the_contamination_line_counts_texts_not_items(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A pair has two texts, and one text can stand in several pairs."""
    top = Headline.model_construct()
    report = TaskReport(headline=top, figures={"num_test": 2}, test_texts=["a b", "c d", "e f"])
    pq.write_table(pa.table({"text": ["g h"]}), tmp_path / "train.parquet")
    with caplog.at_level(logging.INFO):
        finetune._contamination(report, Contamination(3, 0, 0), tmp_path / "train.parquet", "sts")
    assert "of the 3 texts of 2 test items" in caplog.text


@pytest.mark.parametrize(("near", "places"), [((1,), [0, 2]), ((), None), ((0, 1, 2), None)])
def test_the_figure_without_near_duplicates_is_that_of_all_other_test_items(
    near: tuple[int, ...], places: list[int] | None
) -> None:
    asked: list[list[int]] = []

    def headline_on(chosen: Sequence[int]) -> Headline:
        asked.append([*chosen])
        return Headline.model_construct(value=0.5)

    whole = TaskReport(headline=Headline.model_construct(value=0.9), figures={}, headline_on=headline_on)
    others = finetune._without_near_duplicates(whole, Contamination(3, len(near), 0, near)).headline
    assert asked == ([] if places is None else [places])
    assert (others.value, others.judged.value) == (0.9, 0.9 if places is None else 0.5)
