"""The predicted device memory of a step matches what the step takes."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from clozeline.encoder.families import FAMILIES
from clozeline.encoder.families.layout import LanguageHead
from clozeline.language import models
from clozeline.language.models import outline
from clozeline.language.objectives import TargetBatch
from clozeline.params.pretraining import PretrainParams
from clozeline.planning.costs import ParameterCount, StepMemory, device_bytes, optimizer_numbers, target_share
from clozeline.training.optimizers import OPTIMIZERS, build_optimizer
from tests.planning.small import FP32, IDS, VOCAB_SIZE, of_family


@pytest.mark.parametrize("kind", list(OPTIMIZERS))
def test_an_optimizer_keeps_the_planned_number_of_values(params: PretrainParams, kind: str) -> None:
    rate = 1e-3 if kind == "muon" else None
    chosen = params.optimizer.model_copy(update={"kind": kind, "matrix_learning_rate": rate})
    model = models.build(of_family(params, "bert"), "mlm", IDS, seed=0)
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
    assert kept == optimizer_numbers(kind, ParameterCount.of(model))


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


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("length", [32, 300])
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


def test_planned_memory_is_that_of_the_gpu_or_else_of_the_container(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("clozeline.planning.costs.available_bytes", lambda: 3 * 2**30)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert device_bytes() == 3 * 2**30
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (1 * 2**30, 80 * 2**30))
    assert device_bytes() == 80 * 2**30
