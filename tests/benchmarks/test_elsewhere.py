"""Claim: a side whose packages conflict with ours runs with them in a process of its own, and is timed there."""

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

from comparison import elsewhere, sentences

FOLDER = Path(__file__).parent
VARIABLE = "TOKENIZERS_PARALLELISM"
THEIRS = f"""
import os
import time

def answer(texts):
    time.sleep(0.02 if os.environ["{VARIABLE}"] == "false" else 0.0)
    return [os.getpid(), os.environ["{VARIABLE}"], *texts]

def clock(ask, texts, *, times):
    return os.getpid(), [ask(texts) for _ in range(times)]
"""


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """A process with two packages of theirs: one shadows ours; the other has the functions to call, found here too."""
    packages = tmp_path / "packages"
    packages.mkdir()
    monkeypatch.setenv(VARIABLE, "false")
    (packages / "onnxruntime.py").write_text("__version__ = 'theirs'", encoding="utf-8")
    (packages / "theirs_to_ask.py").write_text(THEIRS, encoding="utf-8")
    monkeypatch.syspath_prepend(packages)
    with elsewhere.elsewhere(packages) as process:
        yield process
    sys.modules.pop("theirs_to_ask", None)


def test_packages_in_their_environment_take_precedence_over_ours(theirs: Any) -> None:
    assert theirs.submit(resolve_name, "onnxruntime:__version__").result() == "theirs"


def test_each_side_is_timed_in_its_own_process(theirs: Any) -> None:
    asked = importlib.import_module("theirs_to_ask")
    there = elsewhere.There(theirs, asked.answer)
    pid = theirs.submit(os.getpid).result()
    assert pid != os.getpid()
    assert there(["a"]) == [pid, "false", "a"]
    assert elsewhere.measured(asked.clock, there, ["a"], times=2) == (pid, [[pid, "false", "a"]] * 2)
    assert elsewhere.measured(asked.clock, asked.answer, ["a"], times=1)[0] == os.getpid()


def test_the_threads_of_their_tokenizer_are_chosen_in_its_own_process(theirs: Any) -> None:
    asked = importlib.import_module("theirs_to_ask")
    best, in_parallel = elsewhere.at_its_best(elsewhere.There(theirs, asked.answer), ["a"])
    assert in_parallel
    assert best(["a"]) == [theirs.submit(os.getpid).result(), "true", "a"]
    assert (os.environ[VARIABLE], theirs.submit(os.getenv, VARIABLE).result()) == ("false", "false")


def test_a_process_that_ends_is_reported(theirs: Any) -> None:
    with pytest.raises(BrokenProcessPool):
        theirs.submit(os._exit, 3).result()


def test_an_installed_version_is_reused_and_another_gets_its_own_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> None:
        commands.append(command)
        Path(command[command.index("--target") + 1]).mkdir(parents=True)

    monkeypatch.setattr(sentences, "KEPT", tmp_path)
    monkeypatch.setattr(subprocess, "run", run)
    first = sentences.installed(["some==1"])
    assert sentences.installed(["some==1"]) == first
    assert first.is_dir()
    assert sentences.installed(["some==2"]) != first
    assert [command[-1] for command in commands] == ["some==1", "some==2"]


def test_benchmarks_use_the_versions_pinned_for_clients() -> None:
    lock = FOLDER.parent / "clients" / "requirements.lock"
    (pin,) = sentences.pinned_for_clients(["optimum-onnx"])
    assert pin in lock.read_text(encoding="utf-8").splitlines()
    with pytest.raises(KeyError, match="no-such-package"):
        sentences.pinned_for_clients(["no-such-package"])
