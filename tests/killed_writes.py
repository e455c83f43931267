"""Kill a change of the MLflow registry at one of its writes."""

from collections.abc import Callable, Iterable

import pytest
from mlflow import MlflowClient


class KilledError(BaseException):
    """Stands for SIGKILL: no `except Exception` catches it."""


def is_killed(change: Callable[[], object], *, at_write: int, writes: Iterable[str]) -> bool:
    """Run `change`; every call of `writes` from number `at_write` on raises. Return False if it does fewer writes."""
    num_done = 0

    def counted(write: Callable[..., object]) -> Callable[..., object]:
        def run(*given: object, **named: object) -> object:
            nonlocal num_done
            if num_done == at_write:
                raise KilledError
            num_done += 1
            return write(*given, **named)

        return run

    with pytest.MonkeyPatch.context() as monkeypatch:
        for name in writes:
            monkeypatch.setattr(MlflowClient, name, counted(getattr(MlflowClient, name)))
        try:
            change()
        except KilledError:
            return True
    return False
