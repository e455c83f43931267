from pathlib import Path

import pytest

from clozeline.cluster.executors import open_workers


def test_without_a_cluster_this_machine_works_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLOZELINE_CLUSTER", raising=False)
    monkeypatch.setattr("clozeline.cluster.executors.available_cores", lambda: 1)
    with open_workers(tmp_path / "work") as workers:
        assert list(workers.map(abs, [-1, -2])) == [1, 2]
        assert workers.note == ""
    assert not (tmp_path / "work").exists()
