import gc
from pathlib import Path

import pyarrow as pa

from clozeline.memory import give_back_freed, system_allocator


def own_bytes() -> int:
    """Anonymous memory of this process."""
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


def test_the_allocator_is_the_system_s_within_the_block_alone() -> None:
    before = pa.default_memory_pool().backend_name
    with system_allocator():
        assert pa.default_memory_pool().backend_name == "system"
    assert pa.default_memory_pool().backend_name == before
