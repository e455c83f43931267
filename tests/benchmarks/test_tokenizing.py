"""Claim: the other side runs with its fastest setting on this machine, which is measured and never assumed."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from comparison import elsewhere, sentences, servers
from tests.make.servers import Handler, answering

FOLDER = Path(__file__).parent
VARIABLE = "TOKENIZERS_PARALLELISM"


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (VARIABLE, "RAYON_NUM_THREADS"):
        monkeypatch.setenv(name, "as it was")


@dataclass
class Clock:
    """Time that passes only while a side answers: on a busy machine a short sleep may take longer than a long one."""

    seconds: float = 0.0

    def asked(self, seconds: dict[str, float]) -> Callable[[Sequence[str]], str]:
        """Return a side that answers with the tokenizer's setting, after the seconds given for that setting."""

        def ask(texts: Sequence[str]) -> str:
            self.seconds += seconds[os.environ[VARIABLE]]
            return os.environ[VARIABLE]

        return ask


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", lambda: clock.seconds)
    return clock


@pytest.mark.parametrize("faster", [True, False])
def test_a_tokenizer_uses_threads_only_if_faster_and_only_during_its_calls(clock: Clock, faster: bool) -> None:
    elsewhere.tokenize_as_the_server(2)
    side = clock.asked({"true": 0.02 - 0.01 * faster, "false": 0.01 + 0.01 * faster})
    best, in_parallel = elsewhere.at_its_best(side, [])
    assert (in_parallel, best([])) == (faster, str(faster).lower())
    assert (os.environ[VARIABLE], os.environ["RAYON_NUM_THREADS"]) == ("false", "2")


@pytest.mark.parametrize("faster", ["avx2", "avx512_vnni"])
def test_the_faster_preset_on_this_machine_is_chosen(clock: Clock, faster: str) -> None:
    embed = {
        name: clock.asked(dict.fromkeys(("true", "false"), 0.002 if name == faster else 0.02))
        for name in sentences.PRESETS
    }
    chosen = sentences.FasterPreset.of(embed, ["a", "b"])
    assert (chosen.name, chosen.file) == (faster, sentences.PRESETS[faster])
    assert chosen.facts("some")["some_preset"] == faster
    speeds = chosen.facts("some")["some_presets_texts_per_second"]
    assert speeds.keys() == sentences.PRESETS.keys()
    assert speeds[faster] == max(speeds.values())


def test_the_result_line_names_the_graph_that_our_server_chose() -> None:
    card = b'{"models": [{"name": "encoder", "precision": "fp32", "precision_reason": "INT8 is slower"}]}'

    class Cards(Handler):
        def do_GET(self) -> None:
            assert self.path == "/models"
            self.reply(200, card)

    with answering(ThreadingHTTPServer(("127.0.0.1", 0), Cards)) as server:
        told = servers.graph_of(server.server_port)
    assert told == {"ours_precision": "fp32", "ours_precision_reason": "INT8 is slower"}


def test_their_server_runs_the_chosen_preset_and_tokenizer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[dict[str, str]] = []

    class StartedError(Exception):
        """Ends the start of a server once its settings are recorded."""

    def running(command: Sequence[str], health: str, settings: dict[str, str]) -> None:
        started.append(settings)
        raise StartedError

    monkeypatch.setattr(servers, "_running", running)
    monkeypatch.setattr(servers, "onnx_packages", lambda: tmp_path / "packages")
    models = sentences.SentenceModels(*(tmp_path,) * 4)
    chosen = sentences.FasterPreset("avx2", True, {"avx2": 2.0, "avx512_vnni": 1.0})
    with pytest.raises(StartedError), servers.fastapi(models, 1, 2, chosen):
        pass
    (settings,) = started
    assert settings["SENTENCE_FILE"] == sentences.PRESETS["avx2"]
    assert settings["PYTHONPATH"].split(os.pathsep) == [str(tmp_path / "packages"), str(FOLDER)]
    assert (settings[VARIABLE], settings["RAYON_NUM_THREADS"], settings["SENTENCE_THREADS"]) == ("true", "2", "2")
