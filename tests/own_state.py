"""State of the process that each test, and each test file, finds as if it were the first.

A command sets variables, signal handlers or log levels for its whole process. A worker runs further files in that
process, and which ones is chance.
"""

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Iterator

import pytest


def pytest_configure() -> None:
    _default_signals()


@pytest.fixture(autouse=True, scope="module")
def _state_of_the_file() -> Iterator[None]:
    """Same as `_own_state`, for the commands that fixtures of a whole file run."""
    with restored_state():
        yield


@pytest.fixture(autouse=True)
def _own_state() -> Iterator[None]:
    with restored_state():
        yield


@contextlib.contextmanager
def restored_state() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for restored in (_environment, _path, _mlflow, _signals, _random_state, _threads, _log_levels):
            stack.enter_context(restored())
        yield


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    before = _variables()
    yield
    if (after := _variables()) != before:
        for name in after.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def _variables() -> dict[str, str]:
    """Return all variables but pytest's own, which it sets and removes itself."""
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


@contextlib.contextmanager
def _path() -> Iterator[None]:
    """MLflow puts the code of each model that it loads first, where processes of ours would find it. What a package
    adds on its import stays.
    """
    before = [*sys.path]
    yield
    if sys.path != before:
        sys.path[:] = [folder for folder in sys.path if folder in before or "site-packages" in folder]


@contextlib.contextmanager
def _mlflow() -> Iterator[None]:
    """An address that was set has precedence over the variable that the next test sets."""
    before = _address_of_mlflow()
    yield
    if _address_of_mlflow() != before:
        sys.modules["mlflow"].set_tracking_uri(before)


def _address_of_mlflow() -> str | None:
    return getattr(sys.modules.get("mlflow.tracking._tracking_service.utils"), "_tracking_uri", None)


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    _default_signals()
    yield
    _default_signals()


def _default_signals() -> None:
    """Let the processes that tests start hear signals: a shell that runs us in the background, or `nohup`, switches
    some off, and so does a command that ends.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def _random_state() -> Iterator[None]:
    """Start from the same random state, whatever this process has drawn for earlier tests."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)
    yield


@contextlib.contextmanager
def _threads() -> Iterator[None]:
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else 0
    yield
    if torch:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _log_levels() -> Iterator[None]:
    before = {logger: logger.level for logger in _loggers()}
    yield
    for logger in _loggers():
        is_ours = logger.name.startswith("clozeline")
        level = before.get(logger, logging.NOTSET if is_ours else logger.level)
        if logger.level != level:  # `setLevel` clears a cache of every logger there is: 50 ms after each test
            logger.setLevel(level)


def _loggers() -> list[logging.Logger]:
    known = logging.root.manager.loggerDict.values()
    return [logging.root, *(logger for logger in known if isinstance(logger, logging.Logger))]
