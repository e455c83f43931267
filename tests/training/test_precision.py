from collections.abc import Mapping
from types import MappingProxyType

import pytest
import torch
from torch import nn

from clozeline.system.errors import ParamsError
from clozeline.training.micro_batches import Precision, Requested

CPU, GPU = torch.device("cpu"), torch.device("cuda")
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


@pytest.mark.parametrize("instruction", [None, "avx512_bf16", "amx_bf16", "bf16"])
def test_auto_is_fp32_on_every_cpu(monkeypatch: pytest.MonkeyPatch, instruction: str | None) -> None:
    """P28."""
    have_cpu(monkeypatch, {**NO_BF16, instruction or "": True})
    assert Precision.choose("auto", CPU).name == "fp32"


def test_bf16_is_refused_with_its_cost_on_a_cpu_that_lacks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """P28."""
    have_cpu(monkeypatch, NO_BF16)
    with pytest.raises(ParamsError, match=r"27 times slower than fp32") as caught:
        Precision.choose("bf16", CPU)
    assert "avx512_bf16" in str(caught.value)


@pytest.mark.parametrize("instruction", ["avx512_bf16", "amx_bf16", "bf16"])
def test_bf16_is_accepted_on_a_cpu_that_has_it(monkeypatch: pytest.MonkeyPatch, instruction: str) -> None:
    """P28."""
    have_cpu(monkeypatch, {**NO_BF16, instruction: True})
    assert Precision.choose("bf16", CPU).name == "bf16"


def test_the_real_probe_gives_a_result_for_this_cpu() -> None:
    assert set(NO_BF16) <= set(torch.cpu.get_capabilities()) or "bf16" in torch.cpu.get_capabilities()


def test_fp16_is_refused_on_a_cpu() -> None:
    """P28."""
    with pytest.raises(ParamsError, match="`precision: fp16` does not suit"):
        Precision.choose("fp16", CPU)


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


def test_an_unknown_device_allows_only_fp32() -> None:
    meta = torch.device("meta")
    assert Precision.choose("auto", meta).name == "fp32"
    with pytest.raises(ParamsError, match="`precision: bf16` does not suit"):
        Precision.choose("bf16", meta)


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
