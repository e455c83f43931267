"""The default limits of `clozeline serve` are the server's own, and --fleet is checked before anything loads."""

from inspect import signature

import pytest

from clozeline.cli.serve import _replica, serve
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
