"""What is counted on the outline of a model is what the model has."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from clozeline.model import language_model
from clozeline.model.families import FAMILIES, TokenIds
from clozeline.model.objectives import TargetBatch
from clozeline.params import ModelParams, PretrainParams, read_params
from clozeline.planning.compute import Compute
from clozeline.planning.counting import ParameterCount, outline
from clozeline.planning.memory import OPTIMIZER_NUMBERS, StepMemory
from clozeline.planning.plan import target_share
from clozeline.planning.speed import measure
from clozeline.training.optimizers import OPTIMIZERS, build_optimizer

VOCAB_SIZE = 300
IDS = TokenIds(VOCAB_SIZE, 0, 2, 3)


@pytest.fixture(scope="module")
def params() -> PretrainParams:
    params = read_params(Path(__file__).parents[2] / "params.yaml").pretrain
    model = params.model.model_copy(
        update={
            "size": None,
            "num_hidden_layers": 3,
            "hidden_size": 64,
            "num_attention_heads": 2,
            "intermediate_size": 96,
            "max_position_embeddings": 64,
        }
    )
    return params.model_copy(update={"model": model, "max_length": 32, "batch_tokens": 128})


def of_family(params: PretrainParams, family: str) -> ModelParams:
    return params.model.model_copy(update={"family": family})


def batch_of(num_rows: int, length: int, num_targets: int) -> TargetBatch:
    slot_T = torch.arange(num_targets)
    return TargetBatch(torch.full((num_rows, length), 7), None, slot_T, torch.full((num_targets,), 7))


@pytest.mark.parametrize("family", FAMILIES)
def test_an_outline_has_no_memory_and_as_many_parameters_as_the_model(params: PretrainParams, family: str) -> None:
    drawn = outline(of_family(params, family), "mlm", VOCAB_SIZE)
    assert {parameter.device.type for parameter in drawn.parameters()} == {"meta"}
    real = language_model.build(of_family(params, family), "mlm", IDS, seed=0)
    count = ParameterCount.of(drawn)
    assert count == ParameterCount.of(real)
    assert count.total == sum(parameter.numel() for parameter in real.parameters())
    assert count.embedding >= VOCAB_SIZE * 64
    assert min(count.body, count.head) > 0


def test_int8_is_a_byte_for_each_weight_of_a_matrix_and_fp32_for_the_rest(params: PretrainParams) -> None:
    model = language_model.build(of_family(params, "bert"), "mlm", IDS, seed=0)
    count = ParameterCount.of(model)
    expected = sum(
        weight.numel() + 4 * len(weight) if weight.ndim == 2 else 4 * weight.numel() for weight in model.parameters()
    )
    assert count.int8_bytes == expected < count.fp16_bytes < count.fp32_bytes


@pytest.mark.parametrize("length", [32, 300])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_formula_counts_what_torch_counts(params: PretrainParams, family: str, length: int) -> None:
    """With attention that is written out: torch's counter does not know the fused one of CPUs."""
    form: Any = FAMILIES[family].forms["mlm"]
    shape = of_family(params, family).model_copy(update={"max_position_embeddings": length})
    model = form.model_class._from_config(form.configure(shape, IDS), attn_implementation="eager").eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        ids_BL = torch.full((4, length), 7)
        hidden_BLH = model.base_model(ids_BL, attention_mask=torch.ones_like(ids_BL)).last_hidden_state
        form.project(model, hidden_BLH.reshape(-1, hidden_BLH.shape[-1])[:length])
    compute = Compute.of(model, length=length, target_share=0.25)
    counted = counter.get_total_flops() - of_a_batch(model)
    assert compute.forward * 4 * length == pytest.approx(counted, rel=0.01)


def of_a_batch(model: Any) -> int:
    """DeBERTa projects its relative positions once for all rows, to keys and to queries."""
    config = model.config
    num_positions = 2 * getattr(config, "position_buckets", 0)
    return config.num_hidden_layers * 2 * num_positions * 2 * config.hidden_size**2


def test_a_pair_costs_what_both_cost_and_its_embeddings_once(params: PretrainParams) -> None:
    electra = of_family(params, "electra")
    pair = outline(electra, "rtd", VOCAB_SIZE)
    real = language_model.build(electra, "rtd", IDS, seed=0)
    count = ParameterCount.of(pair)
    assert count == ParameterCount.of(real)
    assert count.total == sum(parameter.numel() for parameter in real.parameters())
    assert count.generator == count.total - real.discriminator.num_parameters()
    assert count.embedding == ParameterCount.of(real.discriminator).embedding
    assert ParameterCount.of(real.discriminator).generator == 0
    discriminator, generator = (
        Compute.of(part, length=32, target_share=share)
        for part, share in ((real.discriminator, 1.0), (real.generator, 0.15))
    )
    both = Compute.of(pair, length=32, target_share=0.15)
    assert both.forward == discriminator.forward + generator.forward
    detecting = params.model_copy(update={"objective": "rtd", "model": electra})
    alone = StepMemory.of(real.discriminator, detecting, "fp32", 0.15)
    assert StepMemory.of(pair, detecting, "fp32", 0.15).activations > alone.activations


def test_a_pair_is_timed_as_it_is_trained(params: PretrainParams) -> None:
    detecting = params.model_copy(update={"objective": "rtd", "model": of_family(params, "electra")})
    model = language_model.build(detecting.model, "rtd", IDS, seed=0)
    before = model.discriminator.discriminator_predictions.dense.weight.detach().clone()
    assert measure(model, detecting, target_share=0.15, flops_per_token=1e6).tokens_per_second > 0
    assert not torch.equal(model.discriminator.discriminator_predictions.dense.weight, before)


@pytest.mark.parametrize("is_asked", [True, False])
def test_what_is_timed_is_compiled_and_recomputes_if_the_training_will(
    params: PretrainParams, is_asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = []
    monkeypatch.setattr("clozeline.planning.speed.compiled", lambda loss, is_wanted: wanted.append(is_wanted) or loss)
    model = language_model.build(of_family(params, "bert"), "mlm", IDS, seed=0)
    asked = params.model_copy(update={"gradient_checkpointing": is_asked, "compile": is_asked})
    monkeypatch.setattr("clozeline.planning.speed._timed", lambda first, second, device: (1.0, 1.0))
    measure(model, asked, target_share=0.2, flops_per_token=1e6)
    assert model.is_gradient_checkpointing == is_asked
    assert wanted == [is_asked]


def test_a_causal_model_attends_to_half(params: PretrainParams) -> None:
    both = [
        Compute.of(outline(params.model, objective, 300), length=32, target_share=1) for objective in ("mlm", "clm")
    ]
    assert both[1].attention == both[0].attention / 2
    assert both[1].training == 3 * both[1].forward


def test_the_mean_mask_rate_is_the_share_of_targets(params: PretrainParams) -> None:
    masking = params.masking.model_copy(update={"mask_rate": 0.3, "final_mask_rate": 0.1})
    assert target_share(params.model_copy(update={"masking": masking})) == pytest.approx(0.2)
    assert target_share(params.model_copy(update={"objective": "clm"})) == 1


@pytest.mark.parametrize("kind", list(OPTIMIZERS))
def test_an_optimizer_keeps_as_many_numbers_as_planned(params: PretrainParams, kind: str) -> None:
    rate = 1e-3 if kind == "muon" else None
    chosen = params.optimizer.model_copy(update={"kind": kind, "matrix_learning_rate": rate})
    model = language_model.build(of_family(params, "bert"), "mlm", IDS, seed=0)
    optimizer = build_optimizer(model, chosen)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    kept = sum(
        value.numel()
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor) and value.ndim
    )
    assert kept == OPTIMIZER_NUMBERS[kind](ParameterCount.of(model))


@pytest.mark.parametrize("family", ["modernbert", "bert"])
def test_activations_are_estimated_within_a_factor_of_two(params: PretrainParams, family: str) -> None:
    model = language_model.build(of_family(params, family), "mlm", IDS, seed=0).train()
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    share = target_share(params)
    batch = batch_of(4, 32, num_targets=round(4 * 32 * share))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = torch.nn.functional.cross_entropy(language_model.target_logits(model, batch), batch.labels_T)
    assert loss.requires_grad
    measured = sum(tensor.untyped_storage().nbytes() for tensor in saved.values())
    assert 0.5 < StepMemory.of(model, params, "fp32", share).activations / measured < 2


def test_checkpointing_and_micro_batches_need_less(params: PretrainParams) -> None:
    model = outline(params.model, "mlm", VOCAB_SIZE)
    whole, parts, recomputed = (
        StepMemory.of(model, params.model_copy(update=change), "fp32", 0.2).activations
        for change in ({}, {"micro_batch_tokens": 32}, {"gradient_checkpointing": True})
    )
    assert parts == pytest.approx(whole / 4, rel=0.01)
    assert recomputed < whole / 2
