"""Claim: arrays in files have the same values as arrays in memory, and take no memory of the process."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from clozeline.system.arrays import CHUNK, DiskArrays, chunks, gathered, mapped, system_allocator


def own_bytes() -> int:
    """Return the anonymous memory of this process in bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def test_a_large_array_takes_no_memory_of_the_process(tmp_path: Path) -> None:
    before = own_bytes()
    numbers = DiskArrays(tmp_path).empty(8_000_000, np.int64)
    for chunk in chunks(len(numbers)):
        numbers[chunk] = np.arange(chunk.start, chunk.stop)
    assert own_bytes() - before < 16_000_000 < numbers.nbytes
    assert not list(tmp_path.iterdir()), "its file has no name"
    assert numbers[[0, 70_000, -1]].tolist() == [0, 70_000, 7_999_999]


@pytest.mark.parametrize("parts", [[], [[]], [[1, 2], [], [3]]])
def test_numbers_appended_in_parts_are_joined_and_read_from_a_file(tmp_path: Path, parts: list[list[int]]) -> None:
    joined = DiskArrays().joined((np.array(part, np.int64) for part in parts), np.uint32)
    expected = [number for part in parts for number in part]
    assert (joined.dtype, joined.tolist()) == (np.uint32, expected)
    joined.tofile(tmp_path / "numbers.bin")
    assert mapped(tmp_path / "numbers.bin", np.uint32).tolist() == expected


@pytest.mark.parametrize("length", [0, 1, CHUNK, CHUNK + 1])
def test_chunks_cover_every_index_once(length: int) -> None:
    assert [place for chunk in chunks(length) for place in range(chunk.start, chunk.stop)] == list(range(length))


def test_gathering_returns_the_values_at_the_given_indices() -> None:
    values, places = np.arange(200_000) * 3, np.random.default_rng(0).permutation(200_000)
    np.testing.assert_array_equal(gathered(values, places, DiskArrays().empty), values[places])


def test_the_system_allocator_is_used_only_within_the_block() -> None:
    before = pa.default_memory_pool().backend_name
    with system_allocator():
        assert pa.default_memory_pool().backend_name == "system"
    assert pa.default_memory_pool().backend_name == before
