"""Claim: the other side runs with its own packages in a process of its own, where it is timed with its fastest setting
on this machine.
"""

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import ThreadingHTTPServer
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

from comparison import elsewhere, sentences, servers
from tests.make.servers import Handler, answering

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
    monkeypatch.setenv(VARIABLE, "false")
    (tmp_path / "onnxruntime.py").write_text("__version__ = 'theirs'", encoding="utf-8")
    (tmp_path / "theirs_to_ask.py").write_text(THEIRS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with elsewhere.elsewhere(tmp_path) as process:
        yield process
    sys.modules.pop("theirs_to_ask", None)


def test_each_side_is_timed_in_its_own_process_with_its_own_packages_and_threads(theirs: Any) -> None:
    asked = importlib.import_module("theirs_to_ask")
    there = elsewhere.There(theirs, asked.answer)
    pid = theirs.submit(os.getpid).result()
    assert pid != os.getpid()
    assert theirs.submit(resolve_name, "onnxruntime:__version__").result() == "theirs"
    assert elsewhere.measured(asked.clock, there, ["a"], times=2) == (pid, [[pid, "false", "a"]] * 2)
    assert elsewhere.measured(asked.clock, asked.answer, ["a"], times=1)[0] == os.getpid()
    best, in_parallel = elsewhere.at_its_best(there, ["a"])
    assert in_parallel
    assert best(["a"]) == [pid, "true", "a"]
    assert (os.environ[VARIABLE], theirs.submit(os.getenv, VARIABLE).result()) == ("false", "false")


def test_an_installed_version_is_reused_and_another_gets_its_own_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> None:
        commands.append(command)
        Path(command[command.index("--target") + 1]).mkdir(parents=True)

    monkeypatch.setattr(sentences, "KEPT", tmp_path)
    monkeypatch.setattr(subprocess, "run", run)
    first, again, other = (sentences.installed([requirement]) for requirement in ("some==1", "some==1", "some==2"))
    assert first == again != other
    assert first.is_dir()
    assert [command[-1] for command in commands] == ["some==1", "some==2"]


def test_benchmarks_use_the_versions_pinned_for_clients() -> None:
    lock = FOLDER.parent / "clients" / "requirements.lock"
    (pin,) = sentences.pinned_for_clients(["optimum-onnx"])
    assert pin in lock.read_text(encoding="utf-8").splitlines()
    with pytest.raises(KeyError, match="no-such-package"):
        sentences.pinned_for_clients(["no-such-package"])


@pytest.fixture
def taking(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, float]], Any]:
    """`taking(seconds)`: a side that answers with the tokenizer's setting, after the seconds given for that setting.

    Time passes only then: on a busy machine a short sleep may take longer than a long one.
    """
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    for name in (VARIABLE, "RAYON_NUM_THREADS"):
        monkeypatch.setenv(name, "as it was")

    def taking(seconds: dict[str, float]) -> Any:
        def ask(texts: Sequence[str]) -> str:
            nonlocal now
            now += seconds[os.environ[VARIABLE]]
            return os.environ[VARIABLE]

        return ask

    return taking


@pytest.mark.parametrize("faster", [True, False])
def test_a_tokenizer_uses_threads_only_if_faster_and_only_during_its_calls(taking: Any, faster: bool) -> None:
    elsewhere.tokenize_as_the_server(2)
    best, in_parallel = elsewhere.at_its_best(taking({"true": 2 - faster, "false": 1 + faster}), [])
    assert (in_parallel, best([])) == (faster, str(faster).lower())
    assert (os.environ[VARIABLE], os.environ["RAYON_NUM_THREADS"]) == ("false", "2")


def test_the_faster_preset_on_this_machine_is_chosen_and_served(
    taking: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[dict[str, str]] = []
    monkeypatch.setattr(servers, "_running", lambda command, health, settings: started.append(settings))
    monkeypatch.setattr(servers, "onnx_packages", lambda: tmp_path / "packages")
    for faster, file in sentences.PRESETS.items():
        asked = {
            name: taking({"false": 2, "true": 1}) if name == faster else taking({"false": 10, "true": 20})
            for name in sentences.PRESETS
        }
        chosen = sentences.FasterPreset.of(asked, ["a", "b"])
        facts = chosen.facts("some")
        assert (chosen.file, facts["some_preset"], facts["some_tokenizes_in_parallel"]) == (file, faster, True)
        assert facts["some_presets_texts_per_second"] == {name: 1 if name == faster else 0.1 for name in asked}
        servers.fastapi(sentences.SentenceModels(*(tmp_path,) * 4), 1, 2, chosen)
        settings = started.pop()
        assert settings["SENTENCE_FILE"] == file
        assert settings["PYTHONPATH"].split(os.pathsep) == [str(tmp_path / "packages"), str(FOLDER)]
        assert (settings[VARIABLE], settings["RAYON_NUM_THREADS"], settings["SENTENCE_THREADS"]) == ("true", "2", "2")


def test_the_result_line_names_the_graph_that_our_server_chose() -> None:
    class Cards(Handler):
        def do_GET(self) -> None:
            assert self.path == "/models"
            self.reply(200, b'{"models": [{"precision": "fp32", "precision_reason": "INT8 is slower"}]}')

    with answering(ThreadingHTTPServer(("127.0.0.1", 0), Cards)) as server:
        told = servers.graph_of(server.server_port)
    assert told == {"ours_precision": "fp32", "ours_precision_reason": "INT8 is slower"}
