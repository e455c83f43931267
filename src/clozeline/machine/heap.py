"""The heap of the C library: what it would keep for later, given back to the machine."""

import ctypes

_M_ARENA_MAX = -8
"""glibc's malloc.h."""


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
