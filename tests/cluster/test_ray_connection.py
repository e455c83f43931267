"""Claim: what only the head can tell is not waited for longer than the head lives."""

import threading
import time
from collections.abc import Callable

import pytest

from clozeline.cluster import nodes
from clozeline.cluster.nodes import answer_of_head, gone
from clozeline.system.errors import TransientError


@pytest.fixture
def unanswered(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A question that is not answered before the end of the test."""
    monkeypatch.setattr(nodes, "_LOOK_SECONDS", 0.05)
    return threading.Event().wait


def test_an_answer_and_an_error_of_ray_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "check_head", lambda: None)
    assert answer_of_head(lambda: [1, 2]) == [1, 2]
    with pytest.raises(ZeroDivisionError):
        answer_of_head(lambda: 1 // 0)


def test_a_head_that_dies_meanwhile_ends_the_wait(
    monkeypatch: pytest.MonkeyPatch, unanswered: Callable[[], None]
) -> None:
    lives = iter([True, True])

    def check_head() -> None:
        if not next(lives, False):
            raise gone(ConnectionRefusedError("refused"))

    monkeypatch.setattr(nodes, "check_head", check_head)
    monkeypatch.setattr(nodes, "_HEAD_SECONDS", 600.0)
    began = time.monotonic()
    with pytest.raises(TransientError, match=r"the cluster is gone(?s:.)*start the cluster"):
        answer_of_head(unanswered)
    assert time.monotonic() - began < 60


def test_a_head_that_lives_and_does_not_answer_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch, unanswered: Callable[[], None]
) -> None:
    monkeypatch.setattr(nodes, "check_head", lambda: None)
    monkeypatch.setattr(nodes, "_HEAD_SECONDS", 0.2)
    with pytest.raises(TransientError, match=r"has not answered for 0 s"):
        answer_of_head(unanswered)
