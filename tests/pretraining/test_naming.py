"""Which changes make a different training, which cannot use the old checkpoints, and which do not."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import clozeline
from clozeline.pretraining import job as naming
from clozeline.pretraining.job import name_of_training
from clozeline.training.micro_batches import Precision
from tests.make.models import NAME, OLD, MovingHub
from tests.training.prepared import Prepare

FP32 = Precision.of("fp32", torch.device("cpu"))


def test_checkpoints_of_other_params_are_not_resumed(prepare: Prepare) -> None:
    prepare().run()
    for changes, is_fresh in [
        ({"optimizer__learning_rate": 1e-4}, True),
        ({"steps": 50}, True),
        ({"checkpoint_every_steps": 7, "num_workers": 1}, False),
    ]:
        assert (prepare(**changes).loop.resume().step == 0) == is_fresh, changes


def test_another_start_revision_is_another_run(prepare: Prepare, tmp_path: Path) -> None:
    prepare.trained(steps=5).save(tmp_path / "first")
    name = str(tmp_path / "first")
    checkpoints = [prepare(start=name, start_revision=revision).loop.checkpoints for revision in ("one", "two")]
    assert checkpoints[0].fingerprint != checkpoints[1].fingerprint


def test_a_changed_start_point_is_another_run(prepare: Prepare, tmp_path: Path) -> None:
    """The name stays the same, but the weights, the configuration or the commit change."""
    prepare.trained(steps=5).save(tmp_path / "first")

    def name_of_run() -> str:
        return prepare(start=str(tmp_path / "first")).loop.checkpoints.fingerprint

    names = [name_of_run(), name_of_run()]
    (tmp_path / "first" / ".cache").mkdir()
    (tmp_path / "first" / ".cache" / "download").write_text("of no weight", encoding="utf-8")
    names.append(name_of_run())
    assert len(set(names)) == 1
    config = tmp_path / "first" / "config.json"
    config.write_text(config.read_text(encoding="utf-8").replace('"gelu"', '"relu"'), encoding="utf-8")
    names.append(name_of_run())
    prepare.trained(steps=6).save(tmp_path / "first")
    names.append(name_of_run())
    assert len(set(names)) == 3


def test_a_start_point_of_the_hub_is_resolved_to_one_commit_which_names_the_run(
    prepare: Prepare, tmp_path: Path, offline_hub: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The branch moves after the first request; the weights and the tokenizer to compare are of the same commit."""
    prepare.trained(steps=5).save(tmp_path / "model")
    MovingHub(tmp_path / "cache", tmp_path / "model").answer_in(monkeypatch)
    job = prepare(start=NAME)
    assert job.params.start_revision == OLD
    assert prepare(start=NAME, start_revision=OLD).loop.checkpoints.fingerprint == job.loop.checkpoints.fingerprint


def test_another_precision_or_device_is_another_run(prepare: Prepare) -> None:
    """`auto` is the precision in which the processor is fast; on a GPU, the processor's threads change nothing."""
    model = prepare().model
    names = []
    for name, device, num_threads in [
        ("fp32", "cpu", 1),
        ("fp32", "cpu", 2),
        ("fp32", "meta", 1),
        ("fp32", "cuda", 1),
        ("bf16", "cuda", 1),
    ]:
        torch.set_num_threads(num_threads)
        precision = replace(FP32, name=name, device=torch.device(device))
        names.append(name_of_training(prepare.params, 1, prepare.tokens, 40, model, precision))
    assert len(set(names)) == 5
    torch.set_num_threads(2)
    assert name_of_training(prepare.params, 1, prepare.tokens, 40, model, precision) == names[-1]


def test_another_version_of_transformers_is_another_run(prepare: Prepare, monkeypatch: pytest.MonkeyPatch) -> None:
    before = prepare().loop.checkpoints.fingerprint
    assert prepare().loop.checkpoints.fingerprint == before
    monkeypatch.setattr("clozeline.pretraining.job.version", lambda package: "4.0")
    assert prepare().loop.checkpoints.fingerprint != before


@pytest.mark.parametrize(("changed", "is_other"), [("language/shards.py", True), ("tasks/heads.py", False)])
def test_editing_code_that_the_training_uses_makes_another_run(
    changed: str, is_other: bool, prepare: Prepare, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(clozeline, "__file__", str(tmp_path / "__init__.py"))
    for place in naming.CODE:
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).touch() if place.endswith(".py") else (tmp_path / place).mkdir(exist_ok=True)
    (tmp_path / changed).parent.mkdir(exist_ok=True)
    (tmp_path / changed).write_text("one = 1\n", encoding="utf-8")
    before = prepare().loop.checkpoints.fingerprint
    assert prepare().loop.checkpoints.fingerprint == before
    (tmp_path / changed).write_text("one = 2\n", encoding="utf-8")
    assert (prepare().loop.checkpoints.fingerprint != before) == is_other
