import pyarrow as pa

from clozeline.machine.arrow_memory import system_allocator


def test_the_allocator_is_the_system_s_within_the_block_alone() -> None:
    before = pa.default_memory_pool().backend_name
    with system_allocator():
        assert pa.default_memory_pool().backend_name == "system"
    assert pa.default_memory_pool().backend_name == before
