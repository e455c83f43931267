import gc
import subprocess
import sys
from pathlib import Path

from clozeline.machine.heap import give_back_freed


def own_bytes() -> int:
    """Return the anonymous memory of this process in bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def test_freed_memory_that_lies_between_used_memory_is_given_back() -> None:
    blocks = [bytes(20_000) for _ in range(2_000)]
    full = own_bytes()
    kept = blocks[-1]
    blocks.clear()
    gc.collect()
    give_back_freed()
    assert len(kept) == 20_000
    assert own_bytes() < full - 30_000_000


HEAPS = """
import ctypes, sys, threading
from clozeline.machine.heap import share_one_heap
if "shared" in sys.argv:
    share_one_heap()
libc, barrier = ctypes.CDLL(None), threading.Barrier(6)
threads = [threading.Thread(target=lambda: (libc.malloc(1000), barrier.wait())) for _ in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc.malloc_stats()
"""


def num_heaps(*arguments: str) -> int:
    command = [sys.executable, "-c", HEAPS, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr.count("Arena ")


def test_threads_that_start_later_get_no_heaps_of_their_own() -> None:
    assert num_heaps("shared") <= 2 < num_heaps()
