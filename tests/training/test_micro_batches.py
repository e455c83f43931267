"""Claim: all processes cut their shares of a batch into equally many parts, which together train like the batch."""

import weakref
from pathlib import Path

import numpy as np
import pytest
import torch

from clozeline.language.objectives import DetectionBatch, TargetBatch
from clozeline.params.pretraining import PretrainParams
from clozeline.pretraining.losses import TargetLoss
from clozeline.system.errors import ParamsError, TrainingError
from clozeline.training.micro_batches import MicroBatches, Precision, noting_shortage, remedies, share_of
from tests.make.params import is_knob_of, named_in
from tests.make.processes import run_alone
from tests.training import little_memory
from tests.training.prepared import CPU, Prepare, changed

GPU, META = torch.device("cuda"), torch.device("meta")


def rows(num_rows: int, length: int = 8) -> TargetBatch:
    """Each row's first token is its number, and its only target."""
    input_ids_BL = torch.arange(num_rows)[:, None].expand(num_rows, length)
    return TargetBatch(input_ids_BL, None, torch.arange(num_rows) * length, torch.arange(num_rows))


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
@pytest.mark.parametrize("num_rows", [1, 2, 3, 5, 9, 16, 17])
@pytest.mark.parametrize("most_slots", [1, 8, 17, 30, 64])
def test_all_processes_cut_equally_many_parts_and_each_target_is_in_one(world_size, num_rows, most_slots: int) -> None:
    whole = rows(num_rows)
    parts = [MicroBatches(most_slots, CPU).parts(*share_of(whole, rank, world_size)) for rank in range(world_size)]
    assert len({len(of_one) for of_one in parts}) == 1
    assert torch.cat([part.labels_T for of_one in parts for part in of_one]).tolist() == list(range(num_rows))
    assert all(part.num_rows for of_one in parts for part in of_one)


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("num_rows", [1, 2, 5, 16, 17])
def test_all_processes_halve_micro_batches_alike_down_to_single_rows(world_size: int, num_rows: int) -> None:
    """A process with fewer rows than another also halves, even if its parts are single rows."""
    shares = [share_of(rows(num_rows), rank, world_size) for rank in range(world_size)]
    each = [MicroBatches(None, CPU) for _ in shares]
    halved = {True}
    while halved != {False}:
        halved = {micro.halve(*own) for micro, own in zip(each, shares, strict=True)}
        assert len(halved) == 1
        parts = [micro.parts(*own) for micro, own in zip(each, shares, strict=True)]
        assert len({len(of_one) for of_one in parts}) == 1
    assert {part.num_rows for of_one in parts for part in of_one} == {1}


@pytest.mark.parametrize(
    ("num_rows", "length", "bound"),
    [
        (6, 64, 192),
        (1, 64, None),  # a part has at least one row
        (6, 20, 64),  # half of it is 60, which params.yaml would refuse
        (3, 20, None),  # ... and 64 would not cut it
    ],
)
def test_the_suggested_micro_batch_size_is_valid_and_gives_smaller_parts(num_rows, length, bound, caplog) -> None:
    batch, micro_batches = rows(num_rows, length), MicroBatches(None, CPU, longest_row=64)
    assert micro_batches.bound_to_set(batch) == bound
    assert bound is None or len(MicroBatches(bound, CPU).parts(batch)) > 1
    assert micro_batches.halve(batch) == (num_rows > 1)
    assert bound is None or f"`micro_batch_tokens: {bound}`" in caplog.text
    assert is_knob_of(PretrainParams, "micro_batch_tokens")


def test_a_filler_row_has_no_targets_for_generator_or_discriminator() -> None:
    batch = rows(3)
    draws = {"uniform_T": torch.rand(3, dtype=torch.float64), "targets_per_token": torch.tensor(0.1)}
    silent = DetectionBatch(**vars(batch), text_ids_BL=batch.input_ids_BL, **draws).rows(0, 1).silent()
    assert (silent.num_rows, len(silent.slot_T), len(silent.labels_T), len(silent.uniform_T)) == (1, 0, 0, 0)
    assert silent.targets_per_token.item() == 0.0


def have_bf16(monkeypatch: pytest.MonkeyPatch, instruction: str | None) -> None:
    """Let the CPU have this instruction, and the GPU bf16, as torch reports it; None: it only emulates it."""
    capabilities = {"avx2": True, "avx512_bf16": False, "amx_bf16": False, instruction or "": True}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    is_supported = lambda including_emulation=True: instruction is not None or including_emulation  # noqa: E731
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", is_supported)


@pytest.mark.parametrize(
    ("device", "instruction", "requested", "told"),
    [
        (CPU, "amx_bf16", "auto", "fp32"),
        *((CPU, instruction, "bf16", "bf16") for instruction in ("avx512_bf16", "amx_bf16", "bf16")),
        (GPU, "bf16", "auto", "bf16"),
        (GPU, None, "auto", "fp16"),
        (GPU, None, "fp32", "fp32"),
        (META, None, "auto", "fp32"),
        (CPU, None, "bf16", "avx512_bf16.* 27 times slower than fp32"),
        (CPU, None, "fp16", "a GPU"),
        (META, None, "bf16", "fp32"),
        (GPU, None, "bf16", "compute capability"),
    ],
)
def test_a_precision_suits_the_processor_or_is_refused(monkeypatch, device, instruction, requested, told: str) -> None:
    """P28: `auto` is fp32 on every CPU. Only fp32 on a GPU uses TF32."""
    have_bf16(monkeypatch, instruction)
    products: list[str] = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", products.append)
    if instruction is None and requested in ("bf16", "fp16"):
        with pytest.raises(ParamsError, match=f"`precision: {requested}` .*{told}"):
            Precision.choose(requested, device)
        return
    precision = Precision.choose(requested, device)
    assert precision.name == told
    assert precision.scaler.is_enabled() == (told == "fp16")
    assert products == (["high"] if (device, told) == (GPU, "fp32") else [])
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    with Precision.of(told, CPU).autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtypes[told]


HUGE = 1 << 50
HUGE_WORDS = "4,503,599,627,370,496 bytes were requested"


def fail(error: Exception) -> None:
    raise error


CUDA = "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 4 GiB"
KERNEL = "could not create a primitive"


@pytest.mark.parametrize(
    ("ask", "told", "keeps_kernels"),
    [
        (lambda: torch.empty(HUGE), HUGE_WORDS, True),
        (lambda: np.empty(HUGE), "8.00 PiB were requested", True),
        (lambda: bytearray(HUGE), "the requested amount is unknown: MemoryError", True),
        (lambda: torch.empty(1).expand(HUGE).split(1), "the requested amount is unknown: std::bad_alloc", True),
        (lambda: fail(torch.OutOfMemoryError(CUDA)), "20.00 MiB were requested", True),
        (lambda: fail(RuntimeError(KERNEL)), f"the requested amount is unknown: {KERNEL}", False),
    ],
)
def test_an_out_of_memory_error_is_recognized_from_any_source(ask, told, keeps_kernels, monkeypatch, caplog) -> None:
    """Only if memory ran out in a kernel, there are no more of these kernels, with a warning."""
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", True)
    with noting_shortage() as shortage:
        ask()
    assert shortage.requested == told
    assert torch.backends.mkldnn.enabled == keeps_kernels
    assert ("bf16" in caplog.text) == (not keeps_kernels)


def test_a_batch_too_large_for_main_memory_is_halved_with_the_same_result(prepare: Prepare, tmp_path: Path) -> None:
    shape = {"model__hidden_size": 128, "model__intermediate_size": 256, "model__num_hidden_layers": 2}
    slow = {"optimizer__learning_rate": 1e-3, "schedule__warmup_fraction": 0.0}
    params = changed(prepare.params, batch_tokens=8192, steps=3, log_every_steps=1, **shape, **slow)
    (tmp_path / "params.json").write_text(params.model_dump_json(), encoding="utf-8")
    found = run_alone(little_memory.__name__, tmp_path / "params.json", prepare.tokens, prepare.tokenizer)
    halved = [line for line in found["told"] if "out of memory" in line and "micro_batch_tokens" in line]
    assert halved, "memory did not run out, so nothing was tested"
    assert found["told in all"] == found["told"]
    assert len(found["little"]) == 3
    assert found["little"] == pytest.approx(found["enough"], rel=1e-5)


def test_a_row_too_large_for_memory_is_refused_with_its_size(prepare: Prepare, monkeypatch: pytest.MonkeyPatch) -> None:
    job = prepare()
    monkeypatch.setattr(TargetLoss, "forward", lambda *_: torch.empty(HUGE))
    with pytest.raises(TrainingError, match=f" tokens.*{HUGE_WORDS}") as caught:
        job.run()
    assert caught.value.do == remedies(prepare.params)
    assert named_in(caught.value.do) == ["gradient_checkpointing", "max_length", "model"]
    assert named_in(remedies(changed(prepare.params, start="some/encoder")))[-1] == "start", "its shape is its own"
    assert all(is_knob_of(PretrainParams, knob) for knob in named_in(caught.value.do))


@pytest.mark.parametrize("words", ["mat1 and mat2 shapes cannot be multiplied", f"{KERNEL} descriptor for a matmul"])
def test_other_errors_are_raised_unchanged(words: str) -> None:
    with pytest.raises(RuntimeError, match=words), noting_shortage():
        fail(RuntimeError(words))


def test_tensors_of_the_failed_block_are_released() -> None:
    held: list[weakref.ref[torch.Tensor]] = []

    def ask() -> None:
        large = torch.empty(1)
        held.append(weakref.ref(large))
        torch.empty(HUGE)

    with noting_shortage() as shortage:
        ask()
    assert shortage.requested
    assert held[0]() is None
