"""Claim: a batch too large for memory is split into smaller parts, on a CPU as on a GPU; if a single row is too
large, the error names what helps."""

import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from clozeline.params.pretraining import PretrainParams
from clozeline.pretraining.losses import TargetLoss
from clozeline.system.errors import TrainingError
from clozeline.training.micro_batches import MicroBatches, noting_shortage, remedies
from tests.make.params import is_knob_of, named_in
from tests.make.processes import run_alone
from tests.training.changes import changed
from tests.training.prepared import Prepare
from tests.training.test_micro_batches import rows

HUGE = 1 << 50


@pytest.fixture(autouse=True)
def _has_onednn_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", torch.backends.mkldnn.enabled)


def no_memory_on_a_gpu() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 4 GiB")


def no_memory_for_a_kernel() -> None:
    raise RuntimeError("could not create a primitive")


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (lambda: torch.empty(HUGE), "4,503,599,627,370,496 bytes were requested"),
        (lambda: np.empty(HUGE), "8.00 PiB were requested"),
        (lambda: bytearray(HUGE), "the requested amount is unknown: MemoryError"),
        (lambda: torch.empty(1).expand(HUGE).split(1), "the requested amount is unknown: std::bad_alloc"),
        (no_memory_on_a_gpu, "20.00 MiB were requested"),
        (no_memory_for_a_kernel, "the requested amount is unknown: could not create a primitive"),
    ],
)
def test_an_out_of_memory_error_is_recognized_from_any_source(ask: Callable[[], object], told: str) -> None:
    with noting_shortage() as shortage:
        ask()
    assert shortage.requested == told


@pytest.mark.parametrize(
    "words", ["mat1 and mat2 shapes cannot be multiplied", "could not create a primitive descriptor for a matmul"]
)
def test_other_errors_are_raised_unchanged(words: str) -> None:
    def fail() -> None:
        raise RuntimeError(words)

    with pytest.raises(RuntimeError, match=words), noting_shortage():
        fail()


def test_nothing_is_reported_if_memory_suffices() -> None:
    with noting_shortage() as shortage:
        torch.empty(1)
    assert shortage.requested is None


def test_tensors_of_the_failed_block_are_released() -> None:
    held: list[weakref.ref[torch.Tensor]] = []

    def fail() -> None:
        large = torch.empty(1)
        held.append(weakref.ref(large))
        torch.empty(HUGE)

    with noting_shortage() as shortage:
        fail()
    assert shortage.requested
    assert held[0]() is None


def test_training_continues_after_a_kernel_ran_out_of_memory() -> None:
    found = run_alone("tests.training.no_memory_for_kernels")
    assert found["told"] == "the requested amount is unknown: could not create a primitive"
    assert found["later"] == pytest.approx(841.345, abs=0.001)


def test_running_out_of_memory_outside_a_kernel_keeps_the_kernels(caplog: pytest.LogCaptureFixture) -> None:
    with noting_shortage():
        torch.empty(HUGE)
    assert torch.backends.mkldnn.enabled
    assert not caplog.text
    with noting_shortage():
        no_memory_for_a_kernel()
    assert not torch.backends.mkldnn.enabled
    assert "bf16" in caplog.text


def test_a_batch_too_large_for_main_memory_is_halved_with_the_same_result(
    tiny_pretraining: PretrainParams, tiny_tokens: Path, tiny_tokenizer: Path, tmp_path: Path
) -> None:
    params = changed(
        tiny_pretraining,
        batch_tokens=8192,
        steps=8,
        log_every_steps=1,
        optimizer__learning_rate=1e-3,
        schedule__warmup_fraction=0.0,
        model__hidden_size=128,
        model__intermediate_size=256,
        model__num_hidden_layers=2,
    )
    (tmp_path / "params.json").write_text(params.model_dump_json(), encoding="utf-8")
    found = run_alone("tests.training.little_memory", tmp_path / "params.json", tiny_tokens, tiny_tokenizer)
    halved = [line for line in found["told"] if "out of memory" in line and "micro_batch_tokens" in line]
    assert halved, "memory did not run out, so nothing was tested"
    assert found["told in all"] == found["told"]
    assert len(found["little"]) == 8
    assert found["little"] == pytest.approx(found["enough"], rel=1e-5)


def without_end(*_: object) -> torch.Tensor:
    """Request more memory than any machine has, so that torch raises its own error."""
    return torch.empty(HUGE)


@pytest.mark.parametrize(
    ("changes", "knobs"),
    [
        ({}, ["gradient_checkpointing", "max_length", "model"]),
        ({"gradient_checkpointing": True}, ["max_length", "model"]),
    ],
)
def test_a_row_too_large_for_memory_is_refused_with_its_size_and_the_params_of_this_section(
    prepare: Prepare, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], knobs: list[str]
) -> None:
    job = prepare(**changes)
    monkeypatch.setattr(TargetLoss, "forward", without_end)
    with pytest.raises(TrainingError) as caught:
        job.run()
    assert "4,503,599,627,370,496 bytes were requested" in str(caught.value)
    assert " tokens" in str(caught.value)
    assert named_in(str(caught.value)) == knobs
    assert all(is_knob_of(PretrainParams, knob) for knob in knobs)


def test_remedies_for_a_loaded_model_name_start_and_no_model_shape(
    tiny_pretraining: PretrainParams,
) -> None:
    told = remedies(changed(tiny_pretraining, start="some/encoder"))
    assert named_in(told) == ["gradient_checkpointing", "max_length", "start"]
    assert is_knob_of(PretrainParams, "start")


def test_the_setting_named_after_halving_exists_in_params(caplog: pytest.LogCaptureFixture) -> None:
    assert MicroBatches(None, torch.device("cpu")).halve(rows(6, 20))
    assert named_in(caplog.text) == ["micro_batch_tokens"]
    assert is_knob_of(PretrainParams, "micro_batch_tokens")
