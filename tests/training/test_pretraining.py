import io
import os
import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from clozeline.model.batches import Split
from clozeline.model.objectives import OBJECTIVES
from clozeline.params import PretrainParams
from clozeline.progress import ProgressBar
from clozeline.tokens.masking import Masker
from clozeline.tokens.shards import TokenShards
from clozeline.training import pretraining
from clozeline.training.callbacks import Callback
from clozeline.training.identity import identity_of
from clozeline.training.losses import TargetLoss
from clozeline.training.precision import Precision
from clozeline.training.pretraining import Pretrained, Pretraining
from clozeline.training.state import CurvePoint, Look
from tests.training.changes import changed

FP32 = Precision.of("fp32", torch.device("cpu"))


@pytest.fixture
def prepare(tiny_tokens: Path, tiny_tokenizer: Path, tiny_pretraining: PretrainParams, tmp_path: Path) -> "Prepare":
    return Prepare(tiny_tokens, tiny_tokenizer, tiny_pretraining, tmp_path)


class Prepare:
    """`prepare(key=value, …)`: a tiny pre-training with these params changed; `prepare.trained(…)`: run to its end."""

    def __init__(self, tokens: Path, tokenizer: Path, params: PretrainParams, folder: Path) -> None:
        self.tokens, self.tokenizer, self.params, self.folder = tokens, tokenizer, params, folder

    def __call__(self, work: str = "work", **changes: object) -> Pretraining:
        return pretraining.prepare(
            changed(self.params, **changes),
            seed=1,
            tokens=self.tokens,
            tokenizer=self.tokenizer,
            work=self.folder / work,
        )

    def trained(self, *callbacks: Callback, **changes: object) -> Pretrained:
        return pretraining.pretrain(
            changed(self.params, **changes), seed=1, tokens=self.tokens, tokenizer=self.tokenizer, callbacks=callbacks
        )


def weights_of(model: torch.nn.Module) -> list[Tensor]:
    return [weight.detach().clone() for weight in model.state_dict().values()]


def largest_difference(one: list[Tensor], other: list[Tensor]) -> float:
    return max((a - b).abs().max().item() for a, b in zip(one, other, strict=True))


def test_masked_training_learns_what_stands_between(prepare: Prepare) -> None:
    curve = prepare.trained(steps=250).state.curve
    assert curve[0].loss > 3.5
    assert curve[-1].loss < 2.7  # ln 59 = 4.08 is knowing nothing


def test_causal_training_learns_what_comes_next(prepare: Prepare) -> None:
    """In this language the next word is certain but for the first of a text, and where a text ends."""
    curve = prepare.trained(objective="clm", steps=250).state.curve
    assert curve[0].loss > 3.5
    assert curve[-1].loss < 1.5


def test_the_same_params_and_seed_give_the_same_curve(prepare: Prepare) -> None:
    assert prepare.trained().state.curve == prepare.trained().state.curve


def test_a_budget_in_tokens_is_turned_into_about_so_many_tokens(prepare: Prepare) -> None:
    assert prepare.trained(steps=None, tokens=8000).state.num_tokens == pytest.approx(8000, rel=0.05)


def test_other_params_never_pick_up_these_checkpoints(prepare: Prepare) -> None:
    prepare().run()
    for changes, is_fresh in [
        ({"optimizer__learning_rate": 1e-4}, True),
        ({"steps": 50}, True),
        ({"checkpoint_every_steps": 7, "num_workers": 1}, False),
    ]:
        assert (prepare(**changes).loop.resume().step == 0) == is_fresh, changes


def test_a_training_batch_hides_targets_and_names_them(tiny_tokens: Path, tiny_pretraining: PretrainParams) -> None:
    split = Split.open(TokenShards.open(tiny_tokens, "train"), max_length=32)
    masker = Masker.create(tiny_pretraining.masking, split.vocabulary, seed=1)
    tokens = split.read(np.arange(20))
    batch = OBJECTIVES["mlm"].training(split, masker, tokens, 0, 0.0)
    original = tokens.padded(tokens.input_ids_N, split.boundary).reshape(-1)
    assert (batch.labels_T.numpy() == original[batch.slot_T.numpy()]).all()
    unchanged = np.ones(len(original), dtype=bool)
    unchanged[batch.slot_T.numpy()] = False
    assert (batch.input_ids_BL.numpy().reshape(-1)[unchanged] == original[unchanged]).all()
    assert (batch.input_ids_BL.numpy().reshape(-1)[~unchanged] == split.vocabulary.mask_id).any()


@pytest.mark.parametrize("micro_batch_tokens", [32, 100, 255])
def test_micro_batches_give_the_parameters_of_the_whole_batch(prepare: Prepare, micro_batch_tokens: int) -> None:
    """P21: parts with uneven numbers of targets; loss, gradient norm and parameters within 1e-5."""
    whole = prepare.trained(steps=10, optimizer__learning_rate=1e-3)
    parts = prepare.trained(steps=10, optimizer__learning_rate=1e-3, micro_batch_tokens=micro_batch_tokens)
    assert largest_difference(weights_of(whole.model), weights_of(parts.model)) < 1e-5
    for one, other in zip(whole.state.curve, parts.state.curve, strict=True):
        assert other.loss == pytest.approx(one.loss, abs=1e-5)
        assert other.gradient_norm == pytest.approx(one.gradient_norm, rel=1e-4)


def test_workers_that_make_batches_change_no_bit(prepare: Prepare) -> None:
    """P4, P29: with 0 and 2 workers."""
    alone, helped = prepare.trained(steps=25), prepare.trained(steps=25, num_workers=2)
    assert alone.state == helped.state
    assert largest_difference(weights_of(alone.model), weights_of(helped.model)) == 0.0


class Killed(BaseException):
    """Stands for a kill: nothing in the training catches it."""


class KillsAt(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_point(self, point: CurvePoint) -> None:
        if point.step >= self.step:
            raise Killed


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("killed_at", [3, 11, 38])
def test_a_killed_training_ends_with_the_bytes_of_one_that_was_not(
    prepare: Prepare, killed_at: int, num_workers: int
) -> None:
    """P29: with dropout, in micro-batches, in mid-epoch, with looks and the best weights kept."""
    changes = {
        "model__dropout": 0.1,
        "micro_batch_tokens": 100,
        "validation__every_steps": 4,
        "validation__patience": 50,
        "checkpoint_every_steps": 3,
        "log_every_steps": 1,
        "num_workers": num_workers,
    }
    whole = prepare("whole", **changes)
    whole_state = whole.run()
    with pytest.raises(Killed):
        prepare("killed", **changes).run([KillsAt(killed_at)])
    torch.manual_seed(99)  # a new process has another random state
    resumed = prepare("killed", **changes)
    assert resumed.run() == whole_state
    assert largest_difference(weights_of(whole.model), weights_of(resumed.model)) == 0.0


def killed_in_a_save(job: Pretraining, save: int) -> int:
    """Signal that ended a process of its own that runs `job`, when half of its save `save` was on the disk."""
    process = os.fork()
    if process == 0:
        try:
            die_in_save(job, save)
        finally:
            os._exit(1)
    return os.WTERMSIG(os.waitpid(process, 0)[1])


def die_in_save(job: Pretraining, save: int) -> None:
    write, num_saves = torch.save, 0

    def half(state: object, file: BinaryIO) -> None:
        nonlocal num_saves
        num_saves += 1
        whole = io.BytesIO()
        write(state, whole)
        file.write(whole.getvalue()[: None if num_saves < save else len(whole.getvalue()) // 2])
        if num_saves == save:
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    torch.save = half
    job.run()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_training_killed_while_it_saves_ends_with_the_bytes_of_one_that_was_not(
    prepare: Prepare, tmp_path: Path, num_workers: int
) -> None:
    """P29, P31: by the signal that no process hears."""
    changes = {"model__dropout": 0.1, "checkpoint_every_steps": 4, "steps": 16, "num_workers": num_workers}
    whole = prepare("whole", **changes)
    whole_state = whole.run()
    assert killed_in_a_save(prepare("killed", **changes), save=3) == signal.SIGKILL
    left = [folder.name for folder in (tmp_path / "killed").glob("*/*")]
    assert sorted(name for name in left if name.endswith("0004") or name.endswith("0008")) == sorted(left)[1:]
    assert sorted(left)[0].startswith(".step-000000012."), "it was killed in the middle of its third save"
    resumed = prepare("killed", **changes)
    assert resumed.loop.resume().step == 8
    assert resumed.run() == whole_state
    assert largest_difference(weights_of(whole.model), weights_of(resumed.model)) == 0.0
    assert not list((tmp_path / "killed").glob("*/.step-*"))


def test_the_first_batch_after_a_resume_does_not_take_longer_late_in_a_training(prepare: Prepare) -> None:
    """P30: counted in batches made, which no clock can blur."""
    made: list[int] = []
    job = prepare()
    feed_batch = type(job.loop.batches_from.__self__).batch

    def counted(feed: object, turn: object) -> object:
        made.append(1)
        return feed_batch(feed, turn)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(job.loop.batches_from.__self__), "batch", counted)
        batch = next(job.loop.batches_from(700, 5))
    assert (batch.epoch, batch.index, len(made)) == (700, 5, 1)


class Looked(Callback):
    def __init__(self) -> None:
        self.looks: list[Look] = []

    def on_look(self, look: Look) -> None:
        self.looks.append(look)


def test_looks_at_held_out_text_change_nothing_of_the_training(prepare: Prepare) -> None:
    looked = Looked()
    blind = prepare.trained(model__dropout=0.1)
    seeing = prepare.trained(looked, model__dropout=0.1, validation__every_steps=7)
    assert [look.step for look in looked.looks] == [7, 14, 21, 28, 35, 40]
    assert blind.state.curve == seeing.state.curve
    assert largest_difference(weights_of(blind.model), weights_of(seeing.model)) == 0.0


def test_a_training_that_gets_no_better_stops_and_keeps_its_best_weights(prepare: Prepare) -> None:
    changes = {"validation__every_steps": 5, "validation__patience": 3, "optimizer__learning_rate": 1.0, "steps": 200}
    stopped = prepare.trained(**changes)
    losses = [look.loss for look in stopped.state.looks]
    best = stopped.state.best_look
    assert best is not None
    assert losses.index(min(losses)) == len(losses) - 4
    assert stopped.state.step == best.step + 15 < 200
    assert prepare.trained(**changes | {"validation__patience": None}).state.step == 200


def test_the_weights_kept_are_those_of_the_best_look(prepare: Prepare) -> None:
    job = prepare(validation__every_steps=5, validation__patience=2, optimizer__learning_rate=1.0, steps=200)
    state = job.run()
    assert job.loop.looks is not None
    best = state.best_look
    assert best is not None
    job.model.eval()
    assert job.loop.looks.measure() == pytest.approx(best.loss, abs=1e-6)


def test_memory_that_runs_out_halves_the_parts_and_keeps_the_batch(
    prepare: Prepare, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = prepare.trained(steps=10, optimizer__learning_rate=1e-3)
    forward = TargetLoss.forward

    def small_memory(self: TargetLoss, batch: object) -> Tensor:
        if batch.num_slots > 100:
            raise torch.OutOfMemoryError("no memory")
        return forward(self, batch)

    monkeypatch.setattr(TargetLoss, "forward", small_memory)
    parts = prepare.trained(steps=10, optimizer__learning_rate=1e-3)
    assert largest_difference(weights_of(whole.model), weights_of(parts.model)) < 1e-5
    assert "out of memory" in caplog.text
    assert "micro_batch_tokens" in caplog.text


def test_gradient_checkpointing_gives_the_same_parameters(prepare: Prepare) -> None:
    plain = prepare.trained(steps=10, model__dropout=0.1)
    thrifty = prepare.trained(steps=10, model__dropout=0.1, gradient_checkpointing=True)
    assert largest_difference(weights_of(plain.model), weights_of(thrifty.model)) < 1e-6


def test_a_mask_rate_that_falls_asks_for_fewer_and_fewer_targets(prepare: Prepare) -> None:
    constant = prepare.trained(masking__mask_rate=0.5).state
    falling = prepare.trained(masking__mask_rate=0.5, masking__final_mask_rate=0.1).state
    assert constant.num_tokens == falling.num_tokens
    assert falling.num_targets == pytest.approx(constant.num_targets * 0.6, rel=0.05)


def test_what_was_trained_loads_in_stock_transformers(prepare: Prepare, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    for objective, auto in (("mlm", AutoModelForMaskedLM), ("clm", AutoModelForCausalLM)):
        prepare.trained(steps=5, objective=objective).save(tmp_path / objective)
        assert auto.from_pretrained(tmp_path / objective, local_files_only=True).config.vocab_size == 64


def test_tokens_are_counted_without_padding(prepare: Prepare) -> None:
    """P37: one epoch is every token of the corpus, and a [CLS] and a [SEP] for each row."""
    job = prepare()
    num_batches = job.loop.batches_from.__self__.batches_per_epoch
    batches = job.loop.batches_from(0, 0)
    counted = sum(next(batches).num_tokens for _ in range(num_batches))
    assert counted == job.train.shards.num_tokens + 2 * len(job.train.rows)


def test_training_goes_on_from_a_model_that_was_trained(prepare: Prepare, tmp_path: Path) -> None:
    """Its loss starts where the other's ended, not at that of knowing nothing; the tokenizer is the same."""
    before = prepare.trained(steps=250)
    before.save(tmp_path / "first")
    changes = {"start": str(tmp_path / "first"), "steps": 5, "log_every_steps": 1, "optimizer__learning_rate": 1e-4}
    after = prepare.trained(**changes)
    assert after.state.curve[0].loss < 2.8
    assert prepare.trained(steps=5, log_every_steps=1).state.curve[0].loss > 3.5
    assert type(after.model) is type(before.model)


def test_a_start_point_of_another_state_is_another_run(prepare: Prepare, tmp_path: Path) -> None:
    prepare.trained(steps=5).save(tmp_path / "first")
    name = str(tmp_path / "first")
    checkpoints = [prepare(start=name, start_revision=revision).loop.checkpoints for revision in ("one", "two")]
    assert checkpoints[0].fingerprint != checkpoints[1].fingerprint


def test_a_changed_start_point_is_another_run(prepare: Prepare, tmp_path: Path) -> None:
    """Its name is the same: its weights, its configuration or its commit are not."""
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


def test_another_commit_of_the_hub_is_another_run(prepare: Prepare) -> None:
    """One that a name without a revision stands for from today on."""
    model = prepare().model
    names = []
    for commit in ("1f00", "2e11"):
        model.config._commit_hash = commit
        names.append(identity_of(prepare.params, 1, prepare.tokens, 40, model, FP32))
    assert names[0] != names[1]


def test_another_precision_or_device_is_another_run(prepare: Prepare) -> None:
    """`auto` is what the processor is fast at; where a GPU computes, the processor's threads change nothing."""
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
        names.append(identity_of(prepare.params, 1, prepare.tokens, 40, model, precision))
    assert len(set(names)) == 5
    torch.set_num_threads(2)
    assert identity_of(prepare.params, 1, prepare.tokens, 40, model, precision) == names[-1]


def test_checkpoints_stay_until_the_model_is_saved(
    tiny_pretraining: PretrainParams, tiny_tokens: Path, tiny_tokenizer: Path, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    trained = pretraining.pretrain(tiny_pretraining, seed=1, tokens=tiny_tokens, tokenizer=tiny_tokenizer, work=work)
    (tmp_path / "encoder").write_text("no folder", encoding="utf-8")
    with pytest.raises(NotADirectoryError):
        trained.save(tmp_path / "encoder" / "inside")
    assert list(work.glob("*/step-*"))
    trained.save(tmp_path / "saved")
    assert list(work.iterdir()) == []


@pytest.mark.parametrize("added", [None, 1.0])
def test_the_encoder_is_saved_without_its_head(prepare: Prepare, tmp_path: Path, added: float | None) -> None:
    """With weights that were put together from several processes, too."""
    from transformers import AutoModel

    trained = prepare.trained(steps=5)
    whole = trained.model.state_dict()
    if added is not None:
        trained = replace(trained, weights={name: weight + added for name, weight in whole.items()})
    trained.save_encoder(tmp_path / "encoder")
    alone, told = AutoModel.from_pretrained(tmp_path / "encoder", local_files_only=True, output_loading_info=True)
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]
    written = load_file(tmp_path / "encoder" / "model.safetensors")
    assert written.keys() == trained.model.base_model.state_dict().keys()
    for name, weight in alone.state_dict().items():
        assert torch.equal(weight, whole[f"model.{name}"] + (added or 0.0))


def test_of_several_processes_the_first_alone_saves(prepare: Prepare, tmp_path: Path) -> None:
    trained = prepare.trained(steps=5)
    replace(trained, writes=False).save(tmp_path / "encoder")
    assert not (tmp_path / "encoder").exists()
    replace(trained, writes=False).save_encoder(tmp_path / "encoder")
    assert not (tmp_path / "encoder").exists()
    trained.save(tmp_path / "encoder")
    assert (tmp_path / "encoder" / "config.json").is_file()


def test_from_python_a_training_shows_how_far_it_is_and_examples(
    prepare: Prepare, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[int, str]] = []
    monkeypatch.setattr(ProgressBar, "advance", lambda bar, units, note: shown.append((units, note)))
    with caplog.at_level("INFO"):
        prepare.trained(validation__every_steps=20, validation__num_examples=2)
    assert len(shown) == 8
    assert re.fullmatch(r"loss \d\.\d{3}, [\d,]+ tokens/s", shown[0][1])
    assert len([record for record in caplog.records if "____" in record.message]) == 4


def test_from_python_a_plateau_is_warned_of(prepare: Prepare, caplog: pytest.LogCaptureFixture) -> None:
    """Hardly any learning rate: the loss stays at ln 64, close to what frequencies give in this language."""
    prepare.trained(steps=150, optimizer__learning_rate=1e-9)
    assert "frequent tokens are" in caplog.text


def test_another_version_of_transformers_is_another_run(prepare: Prepare, monkeypatch: pytest.MonkeyPatch) -> None:
    before = prepare().loop.checkpoints.fingerprint
    assert prepare().loop.checkpoints.fingerprint == before
    monkeypatch.setattr("clozeline.training.identity.version", lambda package: "4.0")
    assert prepare().loop.checkpoints.fingerprint != before
