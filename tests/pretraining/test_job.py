"""A pre-training learns its language, from params to a model that loads anywhere."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from clozeline.language.masking import Masker
from clozeline.language.objectives import OBJECTIVES, Split
from clozeline.language.shards import TokenShards
from clozeline.params.pretraining import PretrainParams
from clozeline.pretraining.losses import TargetLoss
from clozeline.pretraining.watching import NUM_EXAMPLES
from clozeline.system.progress import ProgressBar
from clozeline.training.curves import Look
from clozeline.training.state import Callback
from tests.training.prepared import Prepare, largest_difference, weights_of


def test_masked_training_learns_to_predict_hidden_words(prepare: Prepare) -> None:
    curve = prepare.trained(steps=250).state.curve
    assert curve[0].loss > 3.5
    assert curve[-1].loss < 2.7  # ln 59 = 4.08 is the loss of guessing


def test_causal_training_learns_to_predict_the_next_word(prepare: Prepare) -> None:
    """In this language the next word is certain, except for the first word of a text and the end of a text."""
    curve = prepare.trained(objective="clm", steps=250).state.curve
    assert curve[0].loss > 3.5
    assert curve[-1].loss < 1.5


def test_the_same_params_and_seed_give_the_same_curve(prepare: Prepare) -> None:
    assert prepare.trained().state.curve == prepare.trained().state.curve


def test_a_token_budget_trains_on_about_that_number_of_tokens(prepare: Prepare) -> None:
    assert prepare.trained(steps=None, tokens=8000).state.num_tokens == pytest.approx(8000, rel=0.05)


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


def test_batch_workers_do_not_change_the_result(prepare: Prepare) -> None:
    """P4, P29: with 0 and 2 workers."""
    alone, helped = prepare.trained(steps=25), prepare.trained(steps=25, num_workers=2)
    assert alone.state == helped.state
    assert largest_difference(weights_of(alone.model), weights_of(helped.model)) == 0.0


class Looked(Callback):
    def __init__(self) -> None:
        self.looks: list[Look] = []

    def on_look(self, look: Look) -> None:
        self.looks.append(look)


def test_validation_passes_do_not_affect_the_training(prepare: Prepare) -> None:
    looked = Looked()
    blind = prepare.trained(model__dropout=0.1)
    seeing = prepare.trained(looked, model__dropout=0.1, validation__every_steps=7)
    assert [look.step for look in looked.looks] == [7, 14, 21, 28, 35, 40]
    assert blind.state.curve == seeing.state.curve
    assert largest_difference(weights_of(blind.model), weights_of(seeing.model)) == 0.0


def test_a_training_without_improvement_stops_and_keeps_its_best_weights(prepare: Prepare) -> None:
    changes = {"validation__every_steps": 5, "validation__patience": 3, "optimizer__learning_rate": 1.0, "steps": 200}
    stopped = prepare.trained(**changes)
    losses = [look.loss for look in stopped.state.looks]
    best = stopped.state.best_look
    assert best is not None
    assert losses.index(min(losses)) == len(losses) - 4
    assert stopped.state.step == best.step + 15 < 200
    assert prepare.trained(**changes | {"validation__patience": None}).state.step == 200


def test_the_weights_of_the_best_validation_pass_are_kept(prepare: Prepare) -> None:
    job = prepare(validation__every_steps=5, validation__patience=2, optimizer__learning_rate=1.0, steps=200)
    state = job.run()
    assert job.loop.looks is not None
    best = state.best_look
    assert best is not None
    job.model.eval()
    assert job.loop.looks.measure() == pytest.approx((best.loss, best.accuracy), abs=1e-6)


def test_running_out_of_memory_halves_the_micro_batches_and_not_the_batch(
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


def test_a_falling_mask_rate_gives_fewer_targets_over_time(prepare: Prepare) -> None:
    constant = prepare.trained(masking__mask_rate=0.5).state
    falling = prepare.trained(masking__mask_rate=0.5, masking__final_mask_rate=0.1).state
    assert constant.num_tokens == falling.num_tokens
    assert falling.num_targets == pytest.approx(constant.num_targets * 0.6, rel=0.05)


def test_a_trained_model_loads_in_stock_transformers(prepare: Prepare, tmp_path: Path) -> None:
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


def test_training_continues_from_a_trained_model(prepare: Prepare, tmp_path: Path) -> None:
    """The loss starts where the first training's ended, not at that of guessing; the tokenizer is the same."""
    before = prepare.trained(steps=250)
    before.save(tmp_path / "first")
    changes = {"start": str(tmp_path / "first"), "steps": 5, "log_every_steps": 1, "optimizer__learning_rate": 1e-4}
    after = prepare.trained(**changes)
    assert after.state.curve[0].loss < 2.8
    assert prepare.trained(steps=5, log_every_steps=1).state.curve[0].loss > 3.5
    assert type(after.model) is type(before.model)


@pytest.mark.parametrize("added", [None, 1.0])
def test_the_encoder_is_saved_without_its_head(prepare: Prepare, tmp_path: Path, added: float | None) -> None:
    """Also with weights that were gathered from several processes."""
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
    own = [name for name in whole if name.startswith("encoder.")]
    published = trained.model.layout.published(own, trained.model.config, "feature-extraction")
    assert written.keys() == set(published.values())
    for name, weight in alone.state_dict().items():
        assert torch.equal(weight, whole[next(ours for ours in own if published[ours] == name)] + (added or 0.0))


def test_only_the_first_process_saves(prepare: Prepare, tmp_path: Path) -> None:
    trained = prepare.trained(steps=5)
    replace(trained, writes=False).save(tmp_path / "encoder")
    assert not (tmp_path / "encoder").exists()
    replace(trained, writes=False).save_encoder(tmp_path / "encoder")
    assert not (tmp_path / "encoder").exists()
    trained.save(tmp_path / "encoder")
    assert (tmp_path / "encoder" / "config.json").is_file()


def test_training_from_python_shows_progress_and_examples(
    prepare: Prepare, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[int, str]] = []
    monkeypatch.setattr(ProgressBar, "advance", lambda bar, units, note: shown.append((units, note)))
    with caplog.at_level("INFO"):
        prepare.trained(validation__every_steps=20)
    assert len(shown) == 8
    assert re.fullmatch(r"loss \d\.\d{3}, accuracy \d\.\d %, [\d,]+ tokens/s", shown[0][1])
    assert len([record for record in caplog.records if " %), right: " in record.message]) == 2 * NUM_EXAMPLES


def test_training_from_python_warns_of_a_plateau(prepare: Prepare, caplog: pytest.LogCaptureFixture) -> None:
    """Hardly any learning rate: the loss stays at ln 64, close to what frequencies give in this language."""
    prepare.trained(steps=150, optimizer__learning_rate=1e-9)
    assert "token frequencies alone" in caplog.text
