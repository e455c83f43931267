"""Memory that loading a model takes, and memory that a swap leaves behind."""

import subprocess
import sys

import pytest

from clozeline.records.package import FILES
from clozeline.serving.loading import room_bytes
from tests.make.packages import write_large_embedder

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
WEIGHTS_BYTES = 5 * 4 * 2048**2


@pytest.fixture(scope="module")
def measured_bytes(tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    """Peak memory of a process that loads a model, then its memory after each of four swaps."""
    folder = tmp_path_factory.mktemp("large") / "large"
    write_large_embedder(folder, num_layers=5, width=2048)
    assert (folder / FILES.fp32).stat().st_size > WEIGHTS_BYTES
    told = subprocess.run([sys.executable, "-c", MEASURED, str(folder)], capture_output=True, text=True, check=True)
    return [1024 * int(line) for line in told.stdout.split()]


def test_loading_a_model_stays_within_the_reserved_memory(
    measured_bytes: list[int],
) -> None:
    assert WEIGHTS_BYTES < measured_bytes[0] <= room_bytes(WEIGHTS_BYTES)


def test_a_swap_frees_the_memory_of_the_old_model(measured_bytes: list[int]) -> None:
    _, first, *_, last = measured_bytes
    assert last < first + WEIGHTS_BYTES / 4
