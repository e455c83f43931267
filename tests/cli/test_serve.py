"""The default limits of `clozeline serve` are the server's own, and --fleet is checked before anything loads."""

import os
from inspect import signature

import pytest

from clozeline.cli.serve import _replica, _set_up_log, serve
from clozeline.errors import ParamsError
from clozeline.serving.models.service import Capacity
from clozeline.serving.models.sources import ModelSource


def test_queue_and_timeout_defaults_equal_those_of_the_server() -> None:
    options = {name: option.default for name, option in signature(serve).parameters.items()}
    capacity = Capacity(num_workers=1)
    assert options["queue_tokens"] == capacity.admission.max_waiting_tokens
    assert options["timeout"] == capacity.timeout_seconds


@pytest.mark.parametrize(
    ("fleet", "place", "watch", "problem"),
    [
        ("http://10.0.0.5", "models:/clozeline-encoder@champion", 10.0, "not an address"),
        ("10.0.0.5 172.17.0.1", "models:/clozeline-encoder@champion", 10.0, "not an address"),
        ("10.0.0.5:port", "models:/clozeline-encoder@champion", 10.0, "not an address"),
        ("10.0.0.5", "models:/clozeline-encoder@candidate", 10.0, "cannot change together"),
        ("10.0.0.5", "dist/encoder", 10.0, "cannot change together"),
        ("10.0.0.5", "models:/clozeline-encoder@champion", 0.0, "cannot change together"),
    ],
)
def test_a_fleet_of_other_models_or_without_an_address_is_refused_at_once(
    fleet: str, place: str, watch: float, problem: str
) -> None:
    with pytest.raises(ParamsError, match=problem):
        _replica(fleet, [ModelSource.parse(place)], watch)


def test_the_port_of_a_replica_may_be_left_out() -> None:
    champion = [ModelSource.parse("models:/clozeline-encoder@champion")]
    assert _replica("10.0.0.5", champion, 10.0) == ("10.0.0.5", 0)
    assert _replica("[::1]:80", champion, 10.0) == ("::1", 80)


@pytest.mark.parametrize(("is_in_fleet", "retries"), [(True, "1"), (False, "3")])
def test_a_server_sends_no_telemetry_and_asks_the_registry_briefly(
    monkeypatch: pytest.MonkeyPatch, is_in_fleet: bool, retries: str
) -> None:
    monkeypatch.setattr(os, "environ", {"ORT_DISABLE_TELEMETRY": "0"})
    _set_up_log(is_in_fleet=is_in_fleet)
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == retries
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "0", "what a person has set stays"
