"""Claim: all processes cut their shares of a batch into equally many parts, which together train like the batch."""

import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import torch
from torch import nn

from clozeline.language.objectives import DetectionBatch, TargetBatch
from clozeline.params.pretraining import PretrainParams
from clozeline.pretraining.losses import TargetLoss
from clozeline.system.errors import ParamsError, TrainingError
from clozeline.training.micro_batches import MicroBatches, Precision, Requested, noting_shortage, remedies, share_of
from tests.make.params import is_knob_of, named_in
from tests.make.processes import run_alone
from tests.training.prepared import Prepare, changed

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def rows(num_rows: int, length: int = 8) -> TargetBatch:
    """Each row's first token is its number, and its only target."""
    input_ids_BL = torch.arange(num_rows)[:, None].expand(num_rows, length)
    return TargetBatch(input_ids_BL, None, torch.arange(num_rows) * length, torch.arange(num_rows))


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
@pytest.mark.parametrize("num_rows", [1, 2, 3, 5, 9, 16, 17])
@pytest.mark.parametrize("most_slots", [1, 8, 17, 30, 64])
def test_all_processes_cut_equally_many_parts_and_each_target_is_in_one(
    world_size: int, num_rows: int, most_slots: int
) -> None:
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
    while True:
        halved = {micro.halve(*own) for micro, own in zip(each, shares, strict=True)}
        assert len(halved) == 1
        parts = [micro.parts(*own) for micro, own in zip(each, shares, strict=True)]
        assert len({len(of_one) for of_one in parts}) == 1
        if halved == {False}:
            break
    assert {part.num_rows for of_one in parts for part in of_one} == {1}


@pytest.mark.parametrize(
    ("num_rows", "length", "bound"),
    [
        (6, 64, 192),
        (2, 64, 64),
        (1, 64, None),  # a part has at least one row
        (6, 20, 64),  # half of it is 60, which params.yaml would refuse
        (3, 20, None),  # ... and 64 would not cut it
    ],
)
def test_the_suggested_micro_batch_size_is_valid_and_gives_smaller_parts(
    num_rows: int, length: int, bound: int | None
) -> None:
    batch = rows(num_rows, length)
    assert MicroBatches(None, CPU, longest_row=64).bound_to_set(batch) == bound
    if bound is not None:
        assert len(MicroBatches(bound, CPU).parts(batch)) > 1


def test_a_halved_micro_batch_is_reported_with_the_value_to_set(caplog: pytest.LogCaptureFixture) -> None:
    micro_batches = MicroBatches(None, CPU, longest_row=64)
    assert micro_batches.halve(rows(6, 20))
    assert micro_batches.most_slots == 60
    assert "Set `micro_batch_tokens: 64`" in caplog.text
    assert named_in(caplog.text) == ["micro_batch_tokens"]
    assert is_knob_of(PretrainParams, "micro_batch_tokens")


def test_a_filler_row_has_no_targets_for_generator_or_discriminator() -> None:
    batch = rows(3)
    detecting = DetectionBatch(
        **vars(batch),
        text_ids_BL=batch.input_ids_BL,
        uniform_T=torch.rand(3, dtype=torch.float64),
        targets_per_token=torch.tensor(0.1),
    )
    silent = detecting.rows(0, 1).silent()
    assert (silent.num_rows, len(silent.slot_T), len(silent.labels_T), len(silent.uniform_T)) == (1, 0, 0, 0)
    assert silent.targets_per_token.item() == 0.0


NO_BF16: Mapping[str, bool] = MappingProxyType({"avx2": True, "avx512_bf16": False, "amx_bf16": False})


def have_cpu(monkeypatch: pytest.MonkeyPatch, capabilities: Mapping[str, bool]) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)


@pytest.fixture(autouse=True)
def matmul_precision(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Requested precisions of fp32 matrix products, recorded instead of changing the process's setting."""
    asked: list[str] = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", asked.append)
    return asked


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """A GPU that has bf16 (param True) or only emulates it, as torch reports it."""
    has_bf16: bool = request.param
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: has_bf16 or including_emulation
    )


INSTRUCTIONS = ("avx512_bf16", "amx_bf16", "bf16")


@pytest.mark.parametrize(
    ("requested", "instruction", "name"),
    [
        ("auto", None, "fp32"),
        *(("auto", it, "fp32") for it in INSTRUCTIONS),
        *(("bf16", it, "bf16") for it in INSTRUCTIONS),
    ],
)
def test_auto_is_fp32_on_every_cpu_and_bf16_is_for_those_that_have_it(
    monkeypatch: pytest.MonkeyPatch, requested: Requested, instruction: str | None, name: str
) -> None:
    """P28."""
    have_cpu(monkeypatch, {**NO_BF16, instruction or "": True})
    assert Precision.choose(requested, CPU).name == name


@pytest.mark.parametrize(
    ("requested", "device", "told"),
    [
        ("bf16", CPU, "`precision: bf16` .* avx512_bf16.* 27 times slower than fp32"),
        ("fp16", CPU, "`precision: fp16` does not suit"),
        ("bf16", torch.device("meta"), "`precision: bf16` does not suit"),
    ],
)
def test_a_precision_that_the_processor_lacks_is_refused(
    monkeypatch: pytest.MonkeyPatch, requested: Requested, device: torch.device, told: str
) -> None:
    """P28."""
    have_cpu(monkeypatch, NO_BF16)
    with pytest.raises(ParamsError, match=told):
        Precision.choose(requested, device)


def test_the_real_probe_gives_a_result_for_this_cpu() -> None:
    assert set(NO_BF16) <= set(torch.cpu.get_capabilities()) or "bf16" in torch.cpu.get_capabilities()


@pytest.mark.parametrize(
    ("gpu", "requested", "name"),
    [
        (True, "auto", "bf16"),
        (True, "bf16", "bf16"),
        (True, "fp16", "fp16"),
        (True, "fp32", "fp32"),
        (False, "auto", "fp16"),
        (False, "fp16", "fp16"),
        (False, "fp32", "fp32"),
    ],
    indirect=["gpu"],
)
@pytest.mark.usefixtures("gpu")
def test_the_default_precision_suits_the_gpu(requested: Requested, name: str) -> None:
    """P28."""
    precision = Precision.choose(requested, GPU)
    assert precision.name == name
    assert precision.scaler.is_enabled() == (name == "fp16")


@pytest.mark.parametrize("gpu", [False], indirect=True)
@pytest.mark.usefixtures("gpu")
def test_bf16_is_refused_on_a_gpu_that_only_emulates_it() -> None:
    """P28."""
    with pytest.raises(ParamsError, match="compute capability"):
        Precision.choose("bf16", GPU)


@pytest.mark.parametrize("gpu", [True], indirect=True)
@pytest.mark.usefixtures("gpu")
def test_only_fp32_on_a_gpu_uses_tf32(matmul_precision: list[str]) -> None:
    Precision.choose("bf16", GPU)
    Precision.choose("fp32", CPU)
    assert matmul_precision == []
    Precision.choose("fp32", GPU)
    assert matmul_precision == ["high"]


def test_an_unknown_device_gets_fp32() -> None:
    assert Precision.choose("auto", torch.device("meta")).name == "fp32"


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [
        (Precision.of("fp32", CPU), torch.float32),
        (Precision.of("bf16", CPU), torch.bfloat16),
        (Precision.of("fp16", CPU), torch.float16),
    ],
    ids=lambda value: value.name if isinstance(value, Precision) else "",
)
def test_autocast_changes_the_dtype_of_products_and_not_of_weights(precision: Precision, dtype: torch.dtype) -> None:
    layer = nn.Linear(4, 4)
    with precision.autocast():
        out = layer(torch.ones(2, 4))
    out.float().sum().backward()
    assert out.dtype == dtype
    assert layer.weight.dtype == layer.weight.grad.dtype == torch.float32


def take_steps(precision: Precision, layer: nn.Linear, optimizer: torch.optim.Optimizer, inputs: torch.Tensor) -> None:
    for row in inputs:
        optimizer.zero_grad()
        with precision.autocast():
            loss = layer(row).float().square().mean()
        precision.scaler.scale(loss).backward()
        precision.scaler.unscale_(optimizer)
        precision.scaler.step(optimizer)
        precision.scaler.update()


def test_fp16_skips_a_step_with_gradient_overflow_and_lowers_the_scale() -> None:
    precision = Precision.of("fp16", CPU)
    layer = nn.Linear(4, 4)
    before = layer.weight.detach().clone()
    scale = precision.scaler.get_scale()
    take_steps(precision, layer, torch.optim.SGD(layer.parameters(), lr=0.1), torch.full((1, 4), 6e4))
    assert torch.equal(layer.weight, before)
    assert precision.scaler.get_scale() < scale


def test_the_state_of_the_scaler_survives_a_checkpoint() -> None:
    """P29, the scaler's part."""
    torch.manual_seed(0)
    inputs = torch.randn(6, 4)
    inputs[1] = 6e4  # lowers the scale before the checkpoint
    start = nn.Linear(4, 4).state_dict()

    def fresh() -> tuple[Precision, nn.Linear, torch.optim.Optimizer]:
        layer = nn.Linear(4, 4)
        layer.load_state_dict(start)
        return Precision.of("fp16", CPU), layer, torch.optim.SGD(layer.parameters(), lr=0.1)

    whole, first, second = fresh(), fresh(), fresh()
    take_steps(*whole, inputs)
    take_steps(*first, inputs[:3])
    second[0].scaler.load_state_dict(first[0].scaler.state_dict())
    second[1].load_state_dict(first[1].state_dict())
    take_steps(*second, inputs[3:])
    assert second[0].scaler.state_dict() == whole[0].scaler.state_dict()
    assert torch.equal(second[1].weight, whole[1].weight)


@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_the_scaler_does_nothing_in_fp32_and_bf16(name: str) -> None:
    scaler = Precision.of(name, CPU).scaler
    assert scaler.scale(torch.tensor(3.0)).item() == 3.0
    assert scaler.state_dict() == {}


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
