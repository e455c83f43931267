"""Claim: the default limits of `clozeline serve` are the server's own."""

from inspect import signature

from clozeline.cli.serve import serve
from clozeline.serving.models.service import Capacity


def test_queue_and_timeout_defaults_equal_those_of_the_server() -> None:
    options = {name: option.default for name, option in signature(serve).parameters.items()}
    capacity = Capacity(num_workers=1)
    assert options["queue_tokens"] == capacity.admission.max_waiting_tokens
    assert options["timeout"] == capacity.timeout_seconds
