"""Ranks of processes on several machines."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

from clozeline.system.errors import ArtifactError
from clozeline.system.group import Group, agreed, check_shared, check_versions
from clozeline.system.machine import available_cores


def test_the_first_process_of_another_machine_is_not_the_first_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its local rank is 0 there too, and its cores are shared with the processes of its own machine alone."""
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    described = {"RANK": "4", "LOCAL_RANK": "0", "WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "2"}
    group = Group.join(described)
    assert not group.is_first
    assert (group.rank, group.world_size) == (4, 6)
    assert group.num_threads == max(available_cores() // 2, 1)


@dataclass(frozen=True)
class TwoMachines(Group):
    """The first of two processes; the second one is on another machine, where its own value is `other`."""

    other: Callable[[Any], Any] = str

    def of_each(self, value: Any) -> list[Any]:
        return [value, ("far (process 1)", self.other(value[1]))]

    def of_the_first(self, value: Any) -> Any:
        return value

    def wait(self) -> None:
        pass


def two(other: Callable[[Any], Any]) -> Group:
    return TwoMachines(0, 2, torch.device("cpu"), other=other)


def test_other_programs_on_a_machine_are_refused_by_its_name() -> None:
    check_versions(two(lambda own: own))
    with pytest.raises(ArtifactError, match=r"(?s)Python 3\.9\.1, .*: far \(process 1\)") as caught:
        check_versions(two(lambda own: "Python 3.9.1, " + own.partition(", ")[2]))
    assert "clozeline" in caught.value.problem


def test_other_inputs_on_a_machine_are_refused_by_its_name(tmp_path: Path) -> None:
    assert agreed(two(lambda own: own), tmp_path, "ab") == "ab"
    with pytest.raises(ArtifactError, match=r"fingerprint ab: .*\(process 0\); fingerprint cd: far \(process 1\)"):
        agreed(two(lambda own: "fingerprint cd"), tmp_path, "ab")


def test_a_folder_that_a_machine_does_not_see_is_refused_by_its_name(tmp_path: Path) -> None:
    work = tmp_path / "work"
    seen: list[list[Path]] = []
    check_shared(two(lambda own: seen.append([*work.iterdir()]) or own), work)
    assert [len(files) for files in seen] == [1], "there was a file to see"
    with pytest.raises(ArtifactError, match=r"not shared(?s:.*)far \(process 1\)"):
        check_shared(two(lambda own: False), work)
    assert list(work.iterdir()) == []
