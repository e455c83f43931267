"""Memory that Arrow would keep for later, given back to the machine."""

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa


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
