"""INT8 answers if it passed its gates and is measured as fast as fp32 on this processor; otherwise fp32 answers.

Loading a model takes no more memory than is reserved for it, and a swap leaves none behind.
"""

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from clozeline.inference.latency import Latency
from clozeline.inference.open_model import OpenModel
from clozeline.records.package import FILES
from clozeline.registry import models as registry
from clozeline.registry.models import FetchedPackage, Registered
from clozeline.registry.sources import ModelSource
from clozeline.serving import loading
from clozeline.serving.http.status import card
from clozeline.serving.loading import open_source, room_bytes
from clozeline.system.machine import processor
from tests.make.packages import write_embedder, write_encoder

Clock = Callable[[float, float], list[Latency]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_encoder(tmp_path / "package")
    return tmp_path / "package"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Function that sets the speedups of INT8 over fp32 for a text and a batch, and returns the later timings."""

    def set_to(of_text: float, of_batch: float) -> list[Latency]:
        timed: list[Latency] = []

        def compare(models: dict[str, OpenModel], *, batch_texts: int, **_: object) -> Latency:
            assert {"fp32", "int8"} == models.keys()
            timed.append(Latency(of_text, 1.0, 10 * of_batch, 10.0, batch_texts, 1))
            return timed[-1]

        monkeypatch.setattr(loading, "compare", compare)
        return timed

    return set_to


@pytest.mark.parametrize(
    ("of_text", "of_batch", "answers"), [(1.0, 1.1, "int8"), (0.93, 1.1, "fp32"), (3.0, 0.93, "fp32")]
)
def test_both_graphs_of_a_folder_are_timed_and_int8_is_served_unless_it_is_slower(
    folder: Path, clock: Clock, caplog: pytest.LogCaptureFixture, of_text: float, of_batch: float, answers: str
) -> None:
    caplog.set_level(logging.INFO)
    timed = clock(of_text, of_batch)
    served = open_source(ModelSource("encoder", str(folder)), None)
    assert len(timed) == (1 if answers == "int8" else 3)
    shown = card(served, routes=[])
    assert (served.identity.precision, shown.precision) == (answers, answers)
    assert str(timed[-1]) in shown.precision_reason
    assert f"encoder: serving {answers}, because {shown.precision_reason}" in caplog.text
    assert f"INT8 is {min(of_text, of_batch):.2f} × as fast as fp32" in shown.precision_reason
    assert shown.sha256 == served.model.manifest.files[getattr(FILES, answers)].sha256


def test_the_precision_of_a_release_applies_on_its_own_processor_only_and_in_a_fleet(
    folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = clock(0.5, 0.5)
    for released_as, released_on, is_in_fleet, num_timed, answers in (
        ("fp32", processor(), False, 0, "fp32"),
        ("int8", processor(), False, 0, "int8"),
        ("int8", "Another CPU, avx2", False, 3, "fp32"),
        ("int8", "Another CPU, avx2", True, 0, "int8"),
    ):
        timed.clear()
        released = {"served": released_as, "served_on": released_on, "int8_speedup": 0.93}
        version = Registered("clozeline-encoder", "7", "", "", was_rolled_back=False, **released)
        monkeypatch.setattr(registry, "fetch", lambda uri, version=version: FetchedPackage(folder, version))
        source = ModelSource("encoder", "models:/clozeline-encoder@champion", is_in_fleet=is_in_fleet)
        assert open_source(source, None).identity.precision == answers
        assert len(timed) == num_timed


def test_without_fp32_or_memory_for_it_int8_is_served_and_reported(
    folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = clock(0.5, 0.5)
    source = ModelSource("encoder", str(folder))
    assert open_source(source, "int8").identity.precision == "int8"
    room = [1 << 40, 1]
    with monkeypatch.context() as tight:
        tight.setattr(loading, "free_memory_bytes", lambda: room.pop(0))
        identity = open_source(source, None).identity
    assert (identity.precision, "not enough memory" in identity.precision_reason) == ("int8", True)
    (folder / FILES.fp32).unlink()
    identity = open_source(source, None).identity
    assert (identity.precision, "not compared" in identity.precision_reason) == ("int8", True)
    assert not timed


MEASURED = """
import gc, re, sys
from pathlib import Path

import clozeline.serving.server, onnxruntime, tokenizers  # what has to be there for any model
from clozeline.serving import loading
from clozeline.registry.sources import ModelSource

def kilobytes(name):
    return int(re.search(rf"^{name}:\\s+(\\d+)", Path("/proc/self/status").read_text(), re.MULTILINE)[1])

source = ModelSource("large", sys.argv[1])
before, of_files = kilobytes("VmRSS"), kilobytes("RssFile")
model = loading.open_source(source, "fp32")
print(kilobytes("VmHWM") - before - (kilobytes("RssFile") - of_files))  # pages of libraries can be dropped
for _ in range(4):
    beside = loading.open_source(source, "fp32")
    model = beside
    del beside
    gc.collect()
    print(kilobytes("VmRSS") - before)
"""


def test_loading_stays_within_the_reserved_memory_and_a_swap_frees_that_of_the_old_model(tmp_path: Path) -> None:
    weights_bytes = 5 * 4 * 2048**2
    write_embedder(tmp_path / "large", num_layers=5, width=2048)
    command = [sys.executable, "-c", MEASURED, str(tmp_path / "large")]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    peak, first, *_, last = (1024 * int(line) for line in told.split())
    assert weights_bytes < peak <= room_bytes(weights_bytes)
    assert last < first + weights_bytes / 4
