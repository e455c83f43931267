"""A pre-training learns its language, from params to a model that loads anywhere."""

import json
import shutil
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import clozeline
from clozeline.pretraining.job import CODE, compiled, name_of_training
from clozeline.pretraining.losses import loss_of
from clozeline.system.errors import ArtifactError, ParamsError
from clozeline.training.micro_batches import Precision
from tests.make.models import NAME, OLD, MovingHub
from tests.training.prepared import CPU, DETECTING, Prepare, graphs_of, largest_difference, weights_of


@pytest.mark.parametrize(("objective", "highest"), [("mlm", 2.7), ("clm", 1.5)])
def test_training_learns_to_predict_hidden_words_or_the_next_word(prepare, tmp_path, objective, highest) -> None:
    """ln 59 = 4.08 is the loss of guessing. The next word is certain, except for the first word and the end of a
    text.
    """
    trained = prepare.trained(objective=objective, steps=250)
    assert trained.state.curve[0].loss > 3.5
    assert trained.state.curve[-1].loss < highest
    trained.save(tmp_path / "first")
    changes = {"steps": 5, "log_every_steps": 1, "optimizer__learning_rate": 1e-4}
    more = prepare.trained(objective=objective, start=str(tmp_path / "first"), **changes)
    assert more.state.curve[0].loss < highest + 0.1, "it continues from a trained model"


@pytest.mark.parametrize(
    ("micro_batch_tokens", "objective"), [(32, {}), (100, {}), (255, {}), (32, DETECTING), (100, DETECTING)]
)
def test_micro_batches_give_the_parameters_of_the_whole_batch(prepare, micro_batch_tokens, objective) -> None:
    """P21: parts with uneven numbers of targets and of tokens; loss, gradient norm and parameters within 1e-5."""
    changes = {"steps": 10, "optimizer__learning_rate": 1e-3, **objective}
    whole, parts = prepare.trained(**changes), prepare.trained(**changes, micro_batch_tokens=micro_batch_tokens)
    assert largest_difference(weights_of(whole.model), weights_of(parts.model)) < 1e-5
    for one, other in zip(whole.state.curve, parts.state.curve, strict=True):
        assert other.loss == pytest.approx(one.loss, abs=1e-4 if objective else 1e-5)
        assert other.gradient_norm == pytest.approx(one.gradient_norm, rel=1e-4)


def test_batch_workers_do_not_change_the_result(prepare: Prepare) -> None:
    """P4, P29: with 0 and 2 workers."""
    alone, helped = prepare.trained(steps=25), prepare.trained(steps=25, num_workers=2)
    assert alone.state == helped.state
    assert largest_difference(weights_of(alone.model), weights_of(helped.model)) == 0.0


def test_validation_passes_do_not_affect_the_training(prepare: Prepare) -> None:
    blind = prepare.trained(model__dropout=0.1)
    seeing = prepare.trained(model__dropout=0.1, validation__every_steps=7)
    assert [validation.step for validation in seeing.state.validations] == [7, 14, 21, 28, 35, 40]
    assert blind.state.curve == seeing.state.curve
    assert largest_difference(weights_of(blind.model), weights_of(seeing.model)) == 0.0


def test_a_training_without_improvement_stops_and_keeps_its_best_weights(prepare: Prepare) -> None:
    changes = {"validation__every_steps": 5, "optimizer__learning_rate": 1.0, "steps": 200}
    job = prepare(validation__patience=3, **changes)
    state = job.run()
    losses, best = [validation.loss for validation in state.validations], state.best_validation
    assert best is not None
    assert losses.index(min(losses)) == len(losses) - 4
    assert state.step == best.step + 15 < 200
    job.model.eval()
    assert job.judge.measure() == pytest.approx((best.loss, best.accuracy), abs=1e-6)
    assert prepare.trained(validation__patience=None, **changes).state.step == 200


def test_gradient_checkpointing_gives_the_same_parameters(prepare: Prepare) -> None:
    plain = prepare.trained(steps=10, model__dropout=0.1)
    thrifty = prepare.trained(steps=10, model__dropout=0.1, gradient_checkpointing=True)
    assert largest_difference(weights_of(plain.model), weights_of(thrifty.model)) < 1e-6


def test_tokens_are_counted_without_padding(prepare: Prepare) -> None:
    """P37: one epoch is every token of the corpus, and a [CLS] and a [SEP] for each row."""
    job = prepare()
    num_batches = job.loop.batches_from.__self__.batches_per_epoch
    batches = job.loop.batches_from(0, 0)
    counted = sum(next(batches).num_tokens for _ in range(num_batches))
    assert counted == job.train.shards.num_tokens + 2 * len(job.train.rows)


@pytest.mark.parametrize("added", [None, 1.0])
def test_the_encoder_is_saved_without_its_head(prepare: Prepare, tmp_path: Path, added: float | None) -> None:
    """Also with weights that were gathered from several processes."""
    from transformers import AutoModel

    trained = prepare.trained(steps=5)
    whole = trained.model.state_dict()
    if added is not None:
        trained = replace(trained, weights={name: weight + added for name, weight in whole.items()})
    replace(trained, writes=False).save_encoder(tmp_path / "encoder")
    assert not (tmp_path / "encoder").exists(), "only the first process saves"
    trained.save_encoder(tmp_path / "encoder")
    alone, told = AutoModel.from_pretrained(tmp_path / "encoder", local_files_only=True, output_loading_info=True)
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]
    own = [name for name in whole if name.startswith("encoder.")]
    published = trained.model.layout.published(own, trained.model.config, "feature-extraction")
    assert load_file(tmp_path / "encoder" / "model.safetensors").keys() == set(published.values())
    for name, weight in alone.state_dict().items():
        assert torch.equal(weight, whole[next(ours for ours in own if published[ours] == name)] + (added or 0.0))


# dynamo reads `.grad` at graph breaks, and fails to suppress this warning itself.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize(("objective", "most_graphs"), [({}, 4), (DETECTING, 8)])
def test_batches_of_all_shapes_share_a_few_compiled_graphs(prepare, objective, most_graphs: int) -> None:
    """P39: with and without an attention mask, and extra ones for a first single row or target. Drawing tokens is not
    part of a graph: one is before it, one after. With a backend that needs no compiler; how graphs are cut and shared
    does not depend on it.
    """
    job = prepare(**objective)
    plain, fast = (loss_of(job.model, job.train.vocabulary.is_special_V, 50.0) for _ in range(2))
    graphs = graphs_of(fast)
    batches = job.loop.batches_from(0, 0)
    shapes = set()
    for _ in range(40):
        batch = next(batches).inputs
        shapes.add((*batch.input_ids_BL.shape, len(batch.labels_T)))
        assert fast(batch).loss_sum.item() == pytest.approx(plain(batch).loss_sum.item(), rel=1e-4)
        assert fast(batch).num_right == plain(batch).num_right
    assert len(shapes) > 20
    assert len(graphs) <= most_graphs


def test_checkpoints_of_other_params_are_not_resumed(prepare: Prepare) -> None:
    prepare().run()
    for changes, is_fresh in [
        ({"optimizer__learning_rate": 1e-4}, True),
        ({"steps": 50}, True),
        ({"checkpoint_every_steps": 7, "num_workers": 1}, False),
    ]:
        assert (prepare(**changes).loop.resume().step == 0) == is_fresh, changes


def test_other_code_versions_or_devices_are_another_run(prepare: Prepare, monkeypatch, tmp_path: Path) -> None:
    """On a GPU, the processor's threads change nothing."""
    package = tmp_path / "package"
    for place in (*CODE, "language/shards.py", "tasks/heads.py"):
        file = package / place if place.endswith(".py") else package / place / "__init__.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    monkeypatch.setattr(clozeline, "__file__", str(package / "__init__.py"))
    model = prepare().model

    def name_of_run(name: str = "fp32", device: str = "cpu", num_threads: int = 1) -> str:
        torch.set_num_threads(num_threads)
        precision = replace(Precision.of("fp32", CPU), name=name, device=torch.device(device))
        return name_of_training(prepare.params, 1, prepare.tokens, 40, model, precision)

    names = [name_of_run(), name_of_run(num_threads=2), name_of_run(device="meta"), name_of_run("bf16", "cuda")]
    assert name_of_run("bf16", "cuda", num_threads=2) == names[-1]
    (package / "tasks/heads.py").write_text("one = 2\n", encoding="utf-8")
    assert name_of_run() == names[0], "no training uses it"
    (package / "language/shards.py").write_text("one = 2\n", encoding="utf-8")
    names.append(name_of_run())
    monkeypatch.setattr("clozeline.pretraining.job.version", lambda package: "4.0")
    names.append(name_of_run())
    assert len(set(names)) == 6


def test_a_changed_start_point_is_another_run(prepare: Prepare, tmp_path: Path) -> None:
    """The name stays the same, but the weights, the configuration or the commit change."""
    start = tmp_path / "first"
    prepare.trained(steps=5).save(start)

    def name_of_run(**changes: object) -> str:
        return prepare(start=str(start), **changes).loop.checkpoints.fingerprint

    names = [name_of_run()]
    (start / ".cache").mkdir()
    (start / ".cache" / "download").write_text("of no weight", encoding="utf-8")
    assert name_of_run() == names[0]
    names += [name_of_run(start_revision=revision) for revision in ("one", "two")]
    config = start / "config.json"
    config.write_text(config.read_text(encoding="utf-8").replace('"gelu"', '"relu"'), encoding="utf-8")
    names.append(name_of_run())
    prepare.trained(steps=6).save(start)
    names.append(name_of_run())
    assert len(set(names)) == 5


def test_a_start_point_of_the_hub_is_resolved_to_one_commit(prepare, tmp_path, offline_hub: None, monkeypatch) -> None:
    """The branch moves after the first request; the weights and the tokenizer to compare are of the same commit."""
    prepare.trained(steps=5).save(tmp_path / "model")
    MovingHub(tmp_path / "cache", tmp_path / "model").answer_in(monkeypatch)
    job = prepare(start=NAME)
    assert job.params.start_revision == OLD
    assert prepare(start=NAME, start_revision=OLD).loop.checkpoints.fingerprint == job.loop.checkpoints.fingerprint


def test_tokens_of_another_tokenizer_or_of_none_are_refused(prepare: Prepare, tmp_path: Path) -> None:
    """The tokenizer has as many tokens, but two have swapped ids; no other check would notice."""
    other = shutil.copytree(prepare.tokenizer, tmp_path / "other")
    facts = json.loads((other / "tokenizer.json").read_text(encoding="utf-8"))
    facts["model"]["vocab"] |= {"w5": 6, "w6": 5}
    (other / "tokenizer.json").write_text(json.dumps(facts), encoding="utf-8")
    with pytest.raises(ArtifactError, match="were not made with this tokenizer") as caught:
        prepare(tokenizer=other)
    assert str(other / "tokenizer.json") in str(caught.value)
    with pytest.raises(ArtifactError, match=r"no file .*nowhere"):
        prepare(tokenizer=tmp_path / "nowhere")


def test_a_budget_in_epochs_reads_the_batches_so_often(prepare: Prepare) -> None:
    in_one, in_three, least = (prepare(steps=None, epochs=epochs).loop.total_steps for epochs in (1, 3, 1e-9))
    assert in_one > 2
    assert (in_three, least) == (3 * in_one, 1)
    train = prepare().train
    tokens = 3 * (train.shards.num_tokens + 2 * len(train.rows))
    assert prepare(steps=None, tokens=tokens).loop.total_steps == in_three


def test_a_negative_seed_or_compilation_without_a_compiler_is_refused(prepare: Prepare, monkeypatch) -> None:
    with pytest.raises(ParamsError, match=r"(?s)seed.*-1"):
        prepare(seed=-1)
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(ParamsError, match=r"(?s)g\+\+.*`compile` to false"):
        compiled(nn.Linear(1, 1), wanted=True)


def test_a_falling_mask_rate_gives_fewer_targets_over_time(prepare: Prepare) -> None:
    jobs = [prepare(masking__mask_rate=0.5, masking__final_mask_rate=final) for final in (None, 0.1)]
    constant, falling = (
        sum(batch.num_targets for batch in islice(job.loop.batches_from(0, 0), job.loop.total_steps)) for job in jobs
    )
    assert falling == pytest.approx(0.6 * constant, rel=0.05)


def test_training_from_python_warns_of_a_plateau(prepare: Prepare, caplog: pytest.LogCaptureFixture) -> None:
    """Hardly any learning rate: the loss stays at ln 64, close to what frequencies give in this language."""
    prepare.trained(steps=150, optimizer__learning_rate=1e-9)
    assert "token frequencies alone" in caplog.text
