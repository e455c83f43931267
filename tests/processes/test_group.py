"""Ranks of processes on several machines."""

import pytest
from torch import distributed

from clozeline.system.group import Group, leave
from clozeline.system.machine import available_cores


def test_the_first_process_of_another_machine_is_not_the_first_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its local rank is 0 there too, and its cores are shared with the processes of its own machine alone."""
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    described = {"RANK": "4", "LOCAL_RANK": "0", "WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "2"}
    group = Group.join(described)
    assert not group.is_first
    assert (group.rank, group.world_size) == (4, 6)
    assert group.num_threads == max(available_cores() // 2, 1)


def test_a_process_alone_leaves_nothing() -> None:
    """torchrun with one process joins no group."""
    assert Group.join({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}).is_first
    leave()
