"""Memory that allocators would keep for later, given back to the machine."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

_M_ARENA_MAX = -8
"""glibc's malloc.h."""


@contextmanager
def system_allocator() -> Iterator[None]:
    """Arrow's own allocator keeps what its threads have freed: 60 MB after a small corpus, more after a large one."""
    before = pa.default_memory_pool()
    use_system_allocator()
    try:
        yield
    finally:
        pa.set_memory_pool(before)


def use_system_allocator() -> None:
    pa.set_memory_pool(pa.system_memory_pool())


def give_back_freed() -> None:
    """glibc keeps what was freed until its end of the heap is free as well; other C libraries have no such call."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def share_one_heap() -> None:
    """Let threads that start from now on have no heaps of their own: what one has freed, another can then use."""
    choose = getattr(ctypes.CDLL(None), "mallopt", None)
    if choose is not None:
        choose(_M_ARENA_MAX, 1)
