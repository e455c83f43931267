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


CHAMPION, CANDIDATE, FIXED = (f"models:/clozeline-encoder{version}" for version in ("@champion", "@candidate", "/7"))


@pytest.mark.parametrize(
    ("places", "watch", "named"),
    [
        ([CHAMPION, CANDIDATE], 10.0, "candidate"),
        ([CHAMPION], 0.0, "cannot change together"),
        # Until --fleet lost its address, `--fleet 10.0.0.5` was how a replica was started.
        (["10.0.0.5", CHAMPION], 10.0, "10.0.0.5"),
    ],
)
def test_models_that_cannot_change_together_are_refused_at_once(
    places: list[str], watch: float, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ParamsError) as caught:
        _in_fleet([ModelSource.parse(place) for place in places], watch)
    assert named in str(caught.value)


def test_the_champions_change_together_beside_fixed_versions() -> None:
    sources = [ModelSource.parse(place) for place in (CHAMPION, FIXED)]
    assert [source.is_in_fleet for source in _in_fleet(sources, 10.0)] == [True, False]


@pytest.mark.parametrize(("is_in_fleet", "retries"), [(True, "1"), (False, "3")])
def test_a_server_sends_no_telemetry_and_asks_the_registry_briefly(
    monkeypatch: pytest.MonkeyPatch, is_in_fleet: bool, retries: str
) -> None:
    monkeypatch.setattr(os, "environ", {"ORT_DISABLE_TELEMETRY": "0"})
    _set_up_log(is_in_fleet=is_in_fleet)
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == retries
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "0", "what a person has set stays"
