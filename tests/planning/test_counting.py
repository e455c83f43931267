"""Counts on the outline of a model equal those of the real model."""

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from clozeline.encoder.architecture import Slots
from clozeline.encoder.families import FAMILIES
from clozeline.encoder.model import EncoderModel
from clozeline.language import models
from clozeline.language.models import outline
from clozeline.params.pretraining import PretrainParams
from clozeline.planning.costs import Compute, ParameterCount, StepMemory, target_share
from clozeline.planning.timing import measure
from tests.planning.small import FP32, IDS, VOCAB_SIZE, of_family


@pytest.mark.parametrize("family", FAMILIES)
def test_an_outline_allocates_no_memory_and_has_the_parameter_count_of_the_model(
    params: PretrainParams, family: str
) -> None:
    drawn = outline(of_family(params, family), "mlm", VOCAB_SIZE)
    assert {parameter.device.type for parameter in drawn.parameters()} == {"meta"}
    real = models.build(of_family(params, family), "mlm", IDS, seed=0)
    count = ParameterCount.of(drawn)
    assert count == ParameterCount.of(real)
    assert count.total == sum(parameter.numel() for parameter in real.parameters())
    assert count.embedding >= VOCAB_SIZE * 64
    assert min(count.body, count.head) > 0


def test_int8_counts_one_byte_per_matrix_weight_and_fp32_for_the_rest(params: PretrainParams) -> None:
    model = models.build(of_family(params, "bert"), "mlm", IDS, seed=0)
    count = ParameterCount.of(model)
    expected = sum(
        weight.numel() + 4 * len(weight) if weight.ndim == 2 else 4 * weight.numel() for weight in model.parameters()
    )
    assert count.int8_bytes == expected < count.fp16_bytes < count.fp32_bytes


@pytest.mark.parametrize("length", [32, 300])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_flop_formula_equals_the_counter_of_torch(params: PretrainParams, family: str, length: int) -> None:
    """With unfused attention, because torch's counter does not know the fused attention of CPUs."""
    shape = of_family(params, family).model_copy(update={"max_position_embeddings": length})
    model: Any = models.build(shape, "mlm", IDS, seed=0).eval()
    ids_BL = torch.full((4, length), 7)
    quarter = Slots(torch.arange(length), 4, length, length)
    with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        if isinstance(model, EncoderModel):  # the formula counts the whole last layer
            model.says(quarter.of(model.encoder(ids_BL, torch.ones_like(ids_BL)).last_hidden_state))
        else:
            model(ids_BL, torch.ones_like(ids_BL), positions=quarter)
    compute = Compute.of(model, length=length, target_share=0.25)
    counted = counter.get_total_flops() - of_a_batch(model)
    assert compute.forward * 4 * length == pytest.approx(counted, rel=0.01)


def of_a_batch(model: Any) -> int:
    """Return the operations per batch: DeBERTa projects relative positions once for all rows, to keys and queries."""
    config = model.config
    num_positions = 2 * getattr(config, "position_buckets", 0)
    return config.num_hidden_layers * 2 * num_positions * 2 * config.hidden_size**2


def test_the_shared_embeddings_of_a_pair_count_once(params: PretrainParams) -> None:
    electra = of_family(params, "electra")
    pair = outline(electra, "rtd", VOCAB_SIZE)
    real = models.build(electra, "rtd", IDS, seed=0)
    count = ParameterCount.of(pair)
    assert count == ParameterCount.of(real)
    assert count.total == sum(parameter.numel() for parameter in real.parameters())
    assert count.generator == count.total - sum(it.numel() for it in real.discriminator.parameters())
    assert count.embedding == ParameterCount.of(real.discriminator).embedding
    assert ParameterCount.of(real.discriminator).generator == 0
    discriminator, generator = (
        Compute.of(part, length=32, target_share=share)
        for part, share in ((real.discriminator, 1.0), (real.generator, 0.15))
    )
    both = Compute.of(pair, length=32, target_share=0.15)
    assert both.forward == discriminator.forward + generator.forward
    detecting = params.model_copy(update={"objective": "rtd", "model": electra})
    alone = StepMemory.of(real.discriminator, detecting, FP32, 0.15)
    assert StepMemory.of(pair, detecting, FP32, 0.15).activations > alone.activations


def test_a_replaced_token_pair_is_timed_as_in_training(params: PretrainParams) -> None:
    detecting = params.model_copy(update={"objective": "rtd", "model": of_family(params, "electra")})
    model = models.build(detecting.model, "rtd", IDS, seed=0)
    before = model.discriminator.head.dense.weight.detach().clone()
    assert measure(model, detecting, target_share=0.15, flops_per_token=1e6).tokens_per_second > 0
    assert not torch.equal(model.discriminator.head.dense.weight, before)


@pytest.mark.parametrize("is_asked", [True, False])
def test_the_timed_model_is_compiled_and_recomputes_as_in_training(
    params: PretrainParams, is_asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = []
    monkeypatch.setattr("clozeline.planning.timing.compiled", lambda loss, is_wanted: wanted.append(is_wanted) or loss)
    model = models.build(of_family(params, "bert"), "mlm", IDS, seed=0)
    asked = params.model_copy(update={"gradient_checkpointing": is_asked, "compile": is_asked})
    monkeypatch.setattr("clozeline.planning.timing._timed", lambda first, second, device: (1.0, 1.0))
    measure(model, asked, target_share=0.2, flops_per_token=1e6)
    assert model.encoder.recomputes == is_asked
    assert wanted == [is_asked]


def test_causal_attention_costs_half(params: PretrainParams) -> None:
    both = [
        Compute.of(outline(params.model, objective, 300), length=32, target_share=1) for objective in ("mlm", "clm")
    ]
    assert both[1].attention == both[0].attention / 2
    assert both[1].training == 3 * both[1].forward


def test_the_mean_mask_rate_is_the_share_of_targets(params: PretrainParams) -> None:
    masking = params.masking.model_copy(update={"mask_rate": 0.3, "final_mask_rate": 0.1})
    assert target_share(params.model_copy(update={"masking": masking})) == pytest.approx(0.2)
    assert target_share(params.model_copy(update={"objective": "clm"})) == 1


def test_a_mask_rate_that_falls_to_zero_has_half_its_start_as_mean(params: PretrainParams) -> None:
    masking = params.masking.model_copy(update={"mask_rate": 0.3, "final_mask_rate": 0.0})
    assert target_share(params.model_copy(update={"masking": masking})) == pytest.approx(0.15)
