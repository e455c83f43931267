"""The default limits of `clozeline serve` are the server's own, and --fleet is checked before anything loads."""

import os
from inspect import signature
from pathlib import Path

import pytest

from clozeline.cli.serve import _in_fleet, _set_up_log, serve
from clozeline.registry.sources import ModelSource
from clozeline.serving.models import Capacity
from clozeline.system.errors import ParamsError


def test_queue_and_timeout_defaults_equal_those_of_the_server() -> None:
    options = {name: option.default for name, option in signature(serve).parameters.items()}
    capacity = Capacity(num_workers=1)
    assert options["queue_tokens"] == capacity.admission.max_waiting_tokens
    assert options["timeout"] == capacity.timeout_seconds


@pytest.mark.parametrize(
    ("places", "watch"),
    [
        (["models:/clozeline-encoder@champion", "models:/clozeline-encoder@candidate"], 10.0),
        (["."], 10.0),
        (["models:/clozeline-encoder@champion"], 0.0),
    ],
)
def test_models_that_cannot_change_together_are_refused_at_once(places: list[str], watch: float) -> None:
    with pytest.raises(ParamsError, match="cannot change together"):
        _in_fleet([ModelSource.parse(place) for place in places], watch)


def test_the_champions_change_together_beside_fixed_versions() -> None:
    sources = [ModelSource.parse(f"models:/clozeline-encoder{version}") for version in ("@champion", "/7")]
    assert [source.is_in_fleet for source in _in_fleet(sources, 10.0)] == [True, False]


def test_an_address_behind_fleet_is_refused_as_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until --fleet lost its address, `--fleet 10.0.0.5` was how a replica was started."""
    monkeypatch.chdir(tmp_path)
    sources = [ModelSource.parse(text) for text in ("10.0.0.5", "models:/clozeline-encoder@champion")]
    with pytest.raises(ParamsError) as caught:
        _in_fleet(sources, 10.0)
    assert "10.0.0.5" in caught.value.problem
    assert "no address of this server" in caught.value.do


@pytest.mark.parametrize(("is_in_fleet", "retries"), [(True, "1"), (False, "3")])
def test_a_server_sends_no_telemetry_and_asks_the_registry_briefly(
    monkeypatch: pytest.MonkeyPatch, is_in_fleet: bool, retries: str
) -> None:
    monkeypatch.setattr(os, "environ", {"ORT_DISABLE_TELEMETRY": "0"})
    _set_up_log(is_in_fleet=is_in_fleet)
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == retries
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "0", "what a person has set stays"
