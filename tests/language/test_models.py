from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from clozeline.encoder.architecture import longest_row_of
from clozeline.encoder.families import FAMILIES
from clozeline.language import models
from clozeline.language.detection import GENERATOR
from clozeline.system.errors import ArtifactError, ParamsError, StorageError
from clozeline.system.files import replacing_folder
from tests.make.processes import little_disk

ROW = [2, 10, 11, 12, 13, 14, 3]
SKIPPABLE = [(name, objective) for name, row in FAMILIES.items() if row.is_pre_norm for objective in row.forms]


def test_weights_depend_only_on_the_seed_and_the_global_random_state_stays(params_of, ids) -> None:
    random = torch.get_rng_state()
    one, same, other = (models.build(params_of("modernbert"), "mlm", ids, seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(one[name], weight) for name, weight in same.items())
    assert not all(torch.equal(one[name], weight) for name, weight in other.items())


@pytest.mark.parametrize(
    ("family", "objective", "knobs", "told"),
    [
        ("t5", "mlm", {}, "modernbert, bert, roberta"),
        ("albert", "clm", {}, ", ".join(name for name, family in FAMILIES.items() if "clm" in family.forms)),
        ("deberta-v3", "rtd", {}, r"deberta-v3` has no head for `rtd`.*: electra\n"),
        ("bert", "mlm", {"stochastic_depth": 0.1}, "stochastic_depth.*modernbert"),
    ],
)
def test_a_family_that_cannot_do_what_is_asked_is_refused_with_those_that_can(
    family, objective, knobs, told, params_of, ids
) -> None:
    params = params_of("bert", **knobs).model_copy(update={"family": family})
    with pytest.raises(ParamsError, match=f"(?s){told}"):
        models.build(params, objective, ids, seed=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_activation_epsilon_initial_weights_and_longest_row_follow_params(
    family, params_of, ids, batch_of, caplog
) -> None:
    """In the encoder and the head, except values that the family declares as fixed, which the log names."""
    given = {"activation": "relu", "norm_epsilon": 3e-4, "initializer_range": 0.07}
    model = models.build(params_of(family, **given), "mlm", ids, seed=0)
    fixed = {it.knob for it in FAMILIES[family].fixed}
    assert all(f"{family}: `{knob}`" in caplog.text for knob in fixed)
    assert bool(caplog.text) == bool(fixed)
    of_head = [module for module in model.modules() if module not in set(model.base_model.modules())]
    activations = [*model.base_model.modules(), *([] if "activation" in fixed else of_head)]
    assert sum(isinstance(module, torch.nn.ReLU) for module in activations) >= 2
    assert not [module for module in activations if "GELU" in type(module).__name__]
    epsilons = {module.eps for module in model.modules() if isinstance(module, torch.nn.LayerNorm)}
    assert epsilons == {1e-12 if "norm_epsilon" in fixed else 3e-4}
    deviation = model.get_input_embeddings().weight.std().item()
    assert deviation == pytest.approx(0.07, rel=0.2)  # ModernBERT cuts off at 2 sigma
    assert longest_row_of(model.config) == 64
    with torch.inference_mode():
        assert bool(models.target_logits(model.eval(), batch_of([2, *[9] * 62, 3])).isfinite().all())
    untied = models.build(params_of(family, tie_word_embeddings=False), "mlm", ids, seed=0)
    assert sum(map(torch.numel, untied.parameters())) > sum(map(torch.numel, model.parameters()))


@pytest.mark.parametrize(("objective", "place"), [("mlm", "."), ("rtd", "."), ("rtd", GENERATOR)])
def test_a_model_with_a_missing_weight_is_refused_with_its_name(
    objective, place, params_of, ids, tiny_tokenizer, tmp_path: Path
) -> None:
    """If it were drawn at random, it would pass for a trained weight."""
    models.save(models.build(params_of("electra"), objective, ids, seed=0), tiny_tokenizer, tmp_path)
    weights = load_file(tmp_path / place / "model.safetensors")
    name = min(name for name in weights if "predictions" in name)
    del weights[name]
    save_file(weights, tmp_path / place / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ArtifactError, match=f"(?s)does not hold all weights.*{name}"):
        models.load(tmp_path)


def test_tokens_of_another_vocabulary_are_refused_with_both_sizes(params_of, ids) -> None:
    with pytest.raises(ArtifactError, match=r"(?s)65.*64"):
        models.check_vocabulary(models.build(params_of("bert"), "mlm", ids, seed=0), 65, Path("data/tokens"))


def test_a_full_disk_while_a_model_is_saved_is_reported_and_leaves_no_partial_file(params_of, ids, tmp_path) -> None:
    model, out = models.build(params_of("bert", hidden_size=128), "mlm", ids, seed=0), tmp_path / "encoder"
    told = f"no space left while writing {out}"
    with little_disk(), pytest.raises(StorageError, match=told), replacing_folder(out) as folder:
        model.save(folder)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("knob", ["dropout", "attention_dropout", "head_dropout"])
@pytest.mark.parametrize("family", FAMILIES)
def test_each_dropout_acts_only_in_training_and_is_off_by_default(family, knob, params_of, ids, batch_of) -> None:
    batch = batch_of(ROW, [2, 33, 40, 3])
    plain = models.build(params_of(family), "mlm", ids, seed=0)
    model = models.build(params_of(family, **{knob: 0.5}), "mlm", ids, seed=0)
    with torch.inference_mode():
        expected_TV = models.target_logits(plain.eval(), batch)
        assert torch.equal(models.target_logits(model.eval(), batch), expected_TV)
        assert (models.target_logits(plain.train(), batch) - expected_TV).abs().max() <= 1e-5
        model.train()
        torch.manual_seed(0)
        one_TV, other_TV = (models.target_logits(model, batch) for _ in range(2))
        torch.manual_seed(0)
        again_TV = models.target_logits(model, batch)
    assert not torch.equal(one_TV, other_TV)
    assert torch.equal(one_TV, again_TV)


@pytest.mark.parametrize("objective", ["mlm", "clm"])
@pytest.mark.parametrize("family", ["modernbert", "bert"])
@torch.no_grad()
def test_attention_with_tiny_dropout_gives_the_logits_without_dropout(
    family, objective, params_of, ids, batch_of
) -> None:
    """On a CPU, attention that drops weights runs different code. Here it drops one in 65,536; with this seed, none."""
    model = models.build(params_of(family, attention_dropout=2**-16), objective, ids, seed=0).double()
    torch.manual_seed(0)
    for parameter in model.parameters():
        parameter += 0.3 * torch.randn_like(parameter)  # at the start, attention is too even for its mask to show
    for batch in (batch_of(ROW), batch_of(ROW, [2, *range(30, 40), 3])):
        without_TV = models.target_logits(model.eval(), batch)
        with_TV = models.target_logits(model.train(), batch)
        assert not torch.equal(with_TV, without_TV), "it is the other code"
        assert (with_TV - without_TV).abs().max() <= 1e-3 * without_TV.abs().max()


@pytest.mark.parametrize(("family", "objective"), SKIPPABLE)
@torch.inference_mode()
def test_stochastic_depth_skips_layers_of_single_rows_and_keeps_the_mean(family, objective, params_of, ids) -> None:
    """With two layers at rate 0.5, half of the rows skip the last layer, and a quarter skip the first."""
    plain = models.build(params_of(family), objective, ids, seed=0).eval()
    model = models.build(params_of(family, stochastic_depth=0.5), objective, ids, seed=0).eval()
    assert model.config.to_dict() == plain.config.to_dict()
    row_BL = torch.tensor([ROW])
    assert torch.equal(*(it.base_model(row_BL).last_hidden_state for it in (model, plain))), "only in training"
    seen: list[torch.Tensor] = []
    for layer in [*plain.encoder.layers[:1], *model.encoder.layers]:
        layer.register_forward_hook(lambda module, inputs, output: seen.append(output - inputs[0]))
    torch.manual_seed(0)
    plain.base_model(row_BL)
    model.train().base_model(row_BL.expand(4000, -1))
    expected_BLH, *added = seen
    first_B, last_B = ((added_BLH == 0).all(dim=(1, 2)) for added_BLH in added)
    assert first_B.float().mean().item() == pytest.approx(0.25, abs=0.03)
    assert last_B.float().mean().item() == pytest.approx(0.5, abs=0.03)
    together = (first_B & last_B).float().mean().item()
    assert together == pytest.approx(0.125, abs=0.02), "layers are skipped apart from each other"
    assert (added[0].mean(dim=0) - expected_BLH[0]).abs().max() <= 0.05 * expected_BLH.abs().max()


def test_stochastic_depth_is_the_same_under_gradient_checkpointing(params_of, ids, batch_of) -> None:
    gradients = []
    for checkpointing in (False, True):
        model = models.build(params_of("modernbert", stochastic_depth=0.5), "mlm", ids, seed=0).train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        torch.manual_seed(5)
        models.target_logits(model, batch_of(ROW, [2, 33, 40, 3], [2, 9, 3])).logsumexp(dim=1).sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert (gradients[0] - gradients[1]).abs().max() <= 1e-6
