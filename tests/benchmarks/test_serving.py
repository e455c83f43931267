"""Claim: the other side runs with its own packages in a process of its own, where it is timed with its fastest setting
on this machine; ours is the graph that `make run` would serve, or the line says that it is not.
"""

import importlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

import serving
from clozeline.records.package import FILES, read_manifest
from comparison import elsewhere
from tests.make.packages import rung_of, write_embedder

VARIABLE = "TOKENIZERS_PARALLELISM"
THEIRS = f"""
import os

def answer(texts):
    return [os.getpid(), os.environ["{VARIABLE}"], *texts]

def clock(ask, texts, *, times):
    return os.getpid(), [ask(texts) for _ in range(times)]
"""


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """A process with a package that shadows ours, and the functions to call, which are found here too."""
    monkeypatch.setenv(VARIABLE, "false")
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "onnxruntime.py").write_text("__version__ = 'theirs'", encoding="utf-8")
    (tmp_path / "theirs_to_ask.py").write_text(THEIRS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with elsewhere.process_with(tmp_path / "packages") as process:
        yield process
    sys.modules.pop("theirs_to_ask", None)


def test_each_side_is_timed_in_its_own_process_with_its_own_packages(theirs: Any) -> None:
    asked = importlib.import_module("theirs_to_ask")
    there = elsewhere.There(theirs, asked.answer)
    pid = theirs.submit(os.getpid).result()
    assert pid != os.getpid()
    assert theirs.submit(resolve_name, "onnxruntime:__version__").result() == "theirs"
    assert elsewhere.measured(asked.clock, there, ["a"], times=2) == (pid, [[pid, "false", "a"]] * 2)
    assert elsewhere.measured(asked.clock, asked.answer, ["a"], times=1)[0] == os.getpid()
    best, in_parallel = elsewhere.at_its_best(there, ["a"])
    assert best(["a"]) == [pid, str(in_parallel).lower(), "a"]
    assert (os.environ[VARIABLE], theirs.submit(os.getenv, VARIABLE).result()) == ("false", "false")


def test_the_faster_preset_is_chosen_and_its_tokenizer_uses_threads_only_if_faster_and_only_during_its_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Time passes only in the calls: on a busy machine a short sleep may take longer than a long one."""
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    monkeypatch.setenv(VARIABLE, "as it was")

    def taking(seconds: dict[str, float]) -> Any:
        def ask(texts: Sequence[str]) -> None:
            nonlocal now
            now += seconds[os.environ[VARIABLE]]

        return ask

    sides = {"slow": taking({"false": 10, "true": 20}), "fast": taking({"false": 2, "true": 1})}
    assert [elsewhere.at_its_best(side, [])[1] for side in sides.values()] == [False, True]
    assert serving.faster_preset(sides, ["a", "b"]) == ("fast", True, {"slow": 0.1, "fast": 1})
    assert os.environ[VARIABLE] == "as it was"


@pytest.mark.parametrize(
    ("agreement", "served", "warning"),
    [
        (0.99, "int8", ""),
        (0.75, "int8", "INT8 IS TIMED THAT WOULD NOT BE SERVED"),
        (0.75, "fp32", "FP32 IS TIMED, NO INT8 SCHEME PASSED"),
    ],
)
def test_the_line_tells_the_timed_scheme_and_how_it_passes_the_gates_of_params_yaml(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, agreement: float, served: str, warning: str
) -> None:
    write_embedder(tmp_path / "package")
    manifest = read_manifest(tmp_path / "package")
    assert manifest.quantization is not None
    first, last = (manifest.quantization.model_copy(update={"quantized_matmuls": number}) for number in (5, 6))
    changes = {"served": served, "ladder": (rung_of(first, 0.5), rung_of(last, agreement))}
    changes["quantization"] = last if served == "int8" else None
    (tmp_path / "package" / FILES.manifest).write_text(manifest.model_copy(update=changes).model_dump_json())
    line = serving.verdict(tmp_path / "package")
    assert (line["ours_precision"], line["ours_int8_passes"]) == (served, not warning)
    assert (line["ours_scheme"] or {"quantized_matmuls": 6})["quantized_matmuls"] == 6
    assert (line["ours_scheme"] is None) == (served == "fp32")
    told = f"agreement is {agreement:.4f}, at least 0.97: {'NO' if warning else 'yes'}"
    assert told in line["ours_int8_checks"]
    assert (warning in caplog.text, told in caplog.text) == (True, bool(warning))
    assert bool(caplog.records) == bool(warning)
