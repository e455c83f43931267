"""Claim: arrays in files have the same values as arrays in memory, and take no memory of the process."""

from pathlib import Path

import numpy as np
import pytest

from clozeline.system.arrays import CHUNK, DiskArrays, chunks, gathered, mapped


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
    assert numbers[[0, 70_000, -1]].tolist() == [0, 70_000, 7_999_999]


def test_a_disk_array_has_an_unnamed_file(tmp_path: Path) -> None:
    numbers = DiskArrays(tmp_path).empty(10, np.int64)
    assert not list(tmp_path.iterdir())
    assert numbers.tolist() == [0] * 10


@pytest.mark.parametrize("parts", [[], [[]], [[1, 2], [], [3]]])
def test_numbers_appended_in_parts_are_joined(parts: list[list[int]]) -> None:
    joined = DiskArrays().joined((np.array(part, np.int64) for part in parts), np.uint32)
    assert joined.dtype == np.uint32
    assert joined.tolist() == [number for part in parts for number in part]


@pytest.mark.parametrize("numbers", [[], [5, 6, 7]])
def test_an_array_is_read_from_a_file(tmp_path: Path, numbers: list[int]) -> None:
    np.array(numbers, np.uint32).tofile(tmp_path / "numbers.bin")
    assert mapped(tmp_path / "numbers.bin", np.uint32).tolist() == numbers


@pytest.mark.parametrize("length", [0, 1, CHUNK, CHUNK + 1])
def test_chunks_cover_every_index_once(length: int) -> None:
    assert [place for chunk in chunks(length) for place in range(chunk.start, chunk.stop)] == list(range(length))


def test_gathering_returns_the_values_at_the_given_indices() -> None:
    values, places = np.arange(200_000) * 3, np.random.default_rng(0).permutation(200_000)
    np.testing.assert_array_equal(gathered(values, places, DiskArrays().empty), values[places])
