import subprocess
import sys

BLOCKS = """
import sys
from pathlib import Path
from clozeline.system.machine import give_back_freed

def own_bytes():
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024

blocks = [b"." * 20_000 for _ in range(2_000)]
full = own_bytes()
kept = blocks[-1]
blocks.clear()
if "trimmed" in sys.argv:
    give_back_freed()
print(full - own_bytes())
"""
"""Runs in a process of its own: in a test worker, other tests' threads allocate memory in between."""


def num_freed_bytes(*arguments: str) -> int:
    command = [sys.executable, "-c", BLOCKS, *arguments]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_freed_memory_between_used_blocks_is_returned_to_the_system() -> None:
    assert num_freed_bytes() < 10_000_000 < 30_000_000 < num_freed_bytes("trimmed")


HEAPS = """
import ctypes, sys, threading
from clozeline.system.machine import share_one_heap
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


def test_later_threads_get_no_separate_heaps() -> None:
    assert num_heaps("shared") <= 2 < num_heaps()
