"""Requests wait at the gate while their fleet changes versions, and are refused by a replica that lacks its version."""

import asyncio
import threading

import pytest

from clozeline.serving.errors import ApiError
from clozeline.serving.models.gate import Gate, State


def after_waiting(then: State, seconds: float = 10) -> str:
    """Return how a request fares that waits while another thread moves the gate to `then`; `held`: it stays."""
    gate = Gate()
    gate.set("held")

    async def ask() -> str:
        mover = threading.Timer(0.05, gate.set, [then])
        mover.start()
        try:
            await gate.passed(seconds)
        except ApiError as error:
            return error.detail.code
        finally:
            mover.join()
        return "passed"

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("then", "seconds", "outcome"),
    [
        ("open", 10, "passed"),
        ("behind", 10, "not_ready"),
        ("held", 0.1, "deadline_passed"),
        ("held", 0, "deadline_passed"),
    ],
)
def test_a_request_waits_until_the_gate_moves_or_its_deadline_passes(then: State, seconds: float, outcome: str) -> None:
    assert after_waiting(then, seconds) == outcome


def test_an_open_gate_lets_requests_pass_and_one_behind_refuses_them() -> None:
    gate = Gate()
    asyncio.run(gate.passed(0))
    gate.set("behind")
    with pytest.raises(ApiError) as caught:
        asyncio.run(gate.passed(10))
    assert (caught.value.status, caught.value.headers) == (503, {"retry-after": "1"})
