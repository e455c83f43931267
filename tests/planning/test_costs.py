"""Counts on the outline of a model equal those of the real model."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from clozeline.encoder.architecture import Shape, Slots
from clozeline.encoder.families import FAMILIES
from clozeline.encoder.families.layout import LanguageHead, TokenIds
from clozeline.encoder.model import EncoderModel
from clozeline.language import models
from clozeline.language.models import outline
from clozeline.language.objectives import TargetBatch
from clozeline.params.pretraining import PretrainParams
from clozeline.planning import costs
from clozeline.planning.costs import Compute, ParameterCount, StepMemory, TrainingPlan, target_share
from clozeline.pretraining.job import Pretraining
from clozeline.training.optimizers import OPTIMIZERS, build_optimizer
from tests.make.params import is_knob_of, named_in
from tests.planning.conftest import FP32, IDS, VOCAB_SIZE, of_family
from tests.stages.test_pretrain import run_stage


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
    sizes = [it.numel() + 4 * len(it) if it.ndim == 2 else 4 * it.numel() for it in model.parameters()]
    assert count.int8_bytes == sum(sizes) < count.fp16_bytes < count.fp32_bytes


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
    # DeBERTa projects relative positions once for all rows of a batch, to keys and queries.
    num_positions = 2 * getattr(model.config, "position_buckets", 0)
    of_a_batch = model.config.num_hidden_layers * 2 * num_positions * 2 * model.config.hidden_size**2
    forward = Compute.of(model, length=length, target_share=0.25).forward
    assert forward * 4 * length == pytest.approx(counter.get_total_flops() - of_a_batch, rel=0.01)


def test_the_shared_embeddings_of_a_pair_count_once(params: PretrainParams) -> None:
    electra = of_family(params, "electra")
    pair, real = outline(electra, "rtd", VOCAB_SIZE), models.build(electra, "rtd", IDS, seed=0)
    count, of_one = ParameterCount.of(pair), ParameterCount.of(real.discriminator)
    assert count == ParameterCount.of(real)
    assert count.total == sum(parameter.numel() for parameter in real.parameters())
    assert count.generator == count.total - sum(it.numel() for it in real.discriminator.parameters())
    assert (count.embedding, of_one.generator) == (of_one.embedding, 0)
    asked = {real.discriminator: 1.0, real.generator: 0.15, pair: 0.15}
    discriminator, generator, both = (Compute.of(it, length=32, target_share=asked[it]).forward for it in asked)
    assert both == discriminator + generator
    detecting = params.model_copy(update={"objective": "rtd", "model": electra})
    ours, alone = (StepMemory.of(it, detecting, FP32, 0.15).activations for it in (pair, real.discriminator))
    assert ours > alone


def test_causal_attention_costs_half(params: PretrainParams) -> None:
    masked, causal = (
        Compute.of(outline(params.model, objective, 300), length=32, target_share=1) for objective in ("mlm", "clm")
    )
    assert causal.attention == masked.attention / 2
    assert causal.training == 3 * causal.forward
    assert target_share(params.model_copy(update={"objective": "clm"})) == 1
    masking = params.masking.model_copy(update={"mask_rate": 0.3, "final_mask_rate": 0.1})
    assert target_share(params.model_copy(update={"masking": masking})) == pytest.approx(0.2)


@pytest.mark.parametrize("kind", list(OPTIMIZERS))
def test_an_optimizer_keeps_the_planned_number_of_values(params: PretrainParams, kind: str) -> None:
    rate = 1e-3 if kind == "muon" else None
    chosen = params.optimizer.model_copy(update={"kind": kind, "matrix_learning_rate": rate})
    model = models.build(of_family(params, "bert"), "mlm", IDS, seed=0)
    optimizer = build_optimizer(model, chosen)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    values = (value for state in optimizer.state.values() for value in state.values())
    kept = sum(value.numel() for value in values if isinstance(value, Tensor) and value.ndim)
    assert kept == costs.optimizer_numbers(kind, ParameterCount.of(model))


@contextmanager
def kept_for_backward(model: torch.nn.Module) -> Iterator[dict[int, int]]:
    """Bytes of each storage, by address, that a forward pass inside the context keeps; weights are not counted."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved: dict[int, Tensor] = {}
    sizes: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if (address := tensor.untyped_storage().data_ptr()) not in own:
            saved[address] = tensor  # held, so that no other storage gets its address
            sizes[address] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield sizes


FORMS = [(family, objective) for family, row in FAMILIES.items() for objective in row.forms if objective != "rtd"]


@pytest.mark.parametrize(("length", "dropout"), [(32, 0.0), (300, 0.0), (300, 0.1)])
@pytest.mark.parametrize(("family", "objective"), FORMS, ids=["-".join(form) for form in FORMS])
def test_the_planned_activations_equal_those_kept_by_a_forward_pass(
    params: PretrainParams, family: str, objective: LanguageHead, length: int, dropout: float
) -> None:
    """Short rows and long ones, for which unfused attention keeps more than everything else."""
    rates = {"dropout": dropout, "attention_dropout": dropout}
    shape = of_family(params, family).model_copy(update={"max_position_embeddings": length, **rates})
    changes = {"model": shape, "objective": objective, "max_length": length, "batch_tokens": 4 * length}
    asked = params.model_copy(update=changes)
    model = models.build(shape, objective, IDS, seed=0).train()
    share = target_share(asked)
    num_targets = round(4 * length * share)
    ids_BL, slot_T = torch.full((4, length), 7), torch.arange(num_targets) * (4 * length) // num_targets
    batch = TargetBatch(ids_BL, None, slot_T, torch.full((num_targets,), 7))
    with kept_for_backward(model) as sizes:
        loss = torch.nn.functional.cross_entropy(models.target_logits(model, batch), batch.labels_T)
    assert loss.requires_grad
    planned = StepMemory.of(model, asked, FP32, share).activations
    assert 0.7 < planned / sum(sizes.values()) < 1.5


def test_checkpointing_and_micro_batches_need_less_memory(params: PretrainParams) -> None:
    model = outline(params.model, "mlm", VOCAB_SIZE)
    whole, parts, recomputed = (
        StepMemory.of(model, params.model_copy(update=change), FP32, 0.2).activations
        for change in ({}, {"micro_batch_tokens": 32}, {"gradient_checkpointing": True})
    )
    assert parts == pytest.approx(whole / 4, rel=0.01)
    assert recomputed < whole / 2


def test_planned_memory_is_that_of_the_gpu_or_else_of_the_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "available_bytes", lambda: 3)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (1, 80))
    for is_there, num_bytes in ((False, 3), (True, 80)):
        monkeypatch.setattr("torch.cuda.is_available", lambda is_there=is_there: is_there)
        assert costs.device_bytes() == num_bytes


def test_a_checkpoint_of_any_family_is_planned_with_any_padding_id(
    params: PretrainParams, tiny_tokenizer: Path, tmp_path: Path
) -> None:
    for family, pad_id in (*((family, 1) for family in FAMILIES), ("roberta", 5)):
        model = models.build(of_family(params, family), "mlm", TokenIds(70, pad_id, cls_id=2, sep_id=3), seed=0)
        folder = tmp_path / f"{family} {pad_id}"
        folder.mkdir()
        models.save(model, tiny_tokenizer, folder)
        plan = TrainingPlan.of(params.model_copy(update={"start": str(folder)}), 70)
        assert (plan.count, plan.shape) == (ParameterCount.of(model), Shape(3, 64, 2, 96))
        assert plan.family in {family, family.replace("v3", "v2")}  # v2 and v3 share one class


def test_a_step_that_needs_too_much_memory_is_named_before_the_first_step(
    tiny_pretraining: PretrainParams,
    tiny_tokens: Path,
    tiny_tokenizer: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The planned figure is that for one process."""
    caplog.set_level(logging.INFO)

    def told(job: Pretraining, there: int, world_size: int = 1) -> list[str]:
        caplog.clear()
        monkeypatch.setattr(costs, "device_bytes", lambda: there)
        hardware = job.loop.hardware
        processes = replace(hardware.processes, world_size=world_size)
        costs.warn_of_memory(replace(job, loop=replace(job.loop, hardware=replace(hardware, processes=processes))))
        return caplog.messages

    def before_first_step(job: Pretraining) -> None:
        assert "40 steps" not in caplog.text
        share = target_share(tiny_pretraining)
        needed = StepMemory.of(job.model, tiny_pretraining, job.loop.hardware.precision, share).total
        assert told(job, needed) == told(job, needed - 1, world_size=2) == []
        (warning,) = told(job, needed - 1)
        assert named_in(warning) == ["micro_batch_tokens", "gradient_checkpointing"]
        assert all(is_knob_of(PretrainParams, knob) for knob in named_in(warning))

    run_stage(tiny_pretraining, tiny_tokens, tiny_tokenizer, tmp_path, before_first_step=before_first_step)
    assert "40 steps" in caplog.text
