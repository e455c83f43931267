import sys
from pathlib import Path

import pytest

from clozeline.cluster.ledger import open_workers
from clozeline.system.errors import TransientError


def test_without_a_cluster_this_machine_works_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLOZELINE_CLUSTER", raising=False)
    monkeypatch.setattr("clozeline.cluster.ledger.available_cores", lambda: 1)
    with open_workers(tmp_path / "work") as workers:
        assert list(workers.map(abs, [-1, -2])) == [1, 2]
        assert workers.note == ""
    assert not (tmp_path / "work").exists()


def test_a_cluster_that_does_not_answer_is_named_before_ray_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOZELINE_CLUSTER", "ray://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(TransientError, match=r"127\.0\.0\.1:1"), open_workers(tmp_path):
        pass


def test_without_ray_the_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOZELINE_CLUSTER", "ray://auto")
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "clozeline.cluster.ray_workers", raising=False)
    with pytest.raises(ModuleNotFoundError) as caught, open_workers(tmp_path):
        pass
    assert caught.value.name == "ray"
