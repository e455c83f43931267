import pyarrow as pa

from clozeline.system.arrays import system_allocator


def test_the_system_allocator_is_used_only_within_the_block() -> None:
    before = pa.default_memory_pool().backend_name
    with system_allocator():
        assert pa.default_memory_pool().backend_name == "system"
    assert pa.default_memory_pool().backend_name == before
