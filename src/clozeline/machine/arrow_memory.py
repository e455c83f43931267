"""Make Arrow return freed memory to the system."""

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa


@contextmanager
def system_allocator() -> Iterator[None]:
    """Use the system allocator inside the block. Arrow's own keeps freed memory: 60 MB after a small corpus."""
    before = pa.default_memory_pool()
    use_system_allocator()
    try:
        yield
    finally:
        pa.set_memory_pool(before)


def use_system_allocator() -> None:
    pa.set_memory_pool(pa.system_memory_pool())
