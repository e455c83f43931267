"""Make the C library return freed memory to the system."""

import ctypes

_M_ARENA_MAX = -8
"""M_ARENA_MAX of glibc's malloc.h."""


def give_back_freed() -> None:
    """Trim the heap. glibc keeps freed memory below the top of the heap; other C libraries have no such call."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def share_one_heap() -> None:
    """Let new threads share one heap (arena), so that memory freed by one thread can be reused by another."""
    choose = getattr(ctypes.CDLL(None), "mallopt", None)
    if choose is not None:
        choose(_M_ARENA_MAX, 1)
