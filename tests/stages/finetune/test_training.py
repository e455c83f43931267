"""Claim: a killed training resumes, one of several seeds chooses one of them, and every knob takes effect."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from clozeline.tasks.classification.texts import SingleLabel
from clozeline.training.loop import Loop
from tests.make.tasks import contents, keep_last_weights, metrics_of, without_card
from tests.stages.finetune.topics import Finetune

CURVES = ("training.csv", "validation.csv")


class Killed(BaseException):
    pass


def test_a_killed_run_resumes_and_ends_with_the_same_bytes(
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
    assert len(list((tmp_path / "work" / "small").rglob("step-*"))) == 1
    assert contents(run("parts")) == contents(whole)
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


def test_loss_and_validation_curves_of_the_kept_model_are_written(run: Finetune) -> None:
    out = run("out", epochs=2)
    losses, looks = ([*csv.DictReader((out / name).read_text().splitlines())] for name in CURVES)
    assert float(losses[-1]["loss"]) < float(losses[0]["loss"])
    assert [float(look["epoch"]) for look in looks] == [0, 1, 2]
    assert looks[-1]["step"] == losses[-1]["step"]
    assert max(float(look["validation_score"]) for look in looks) == metrics_of(out)["validation_score"]


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
    "looks inside an epoch": {"looks_per_epoch": 2, "patience": 3},
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
        "looks inside an epoch",
        "frozen layers",
    }


def test_a_checkpoint_of_other_params_is_not_resumed(
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
