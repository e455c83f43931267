"""The servers whose traffic is added: named by URL, or as the fleet of a model."""

from pathlib import Path

import pytest

from clozeline.drift.servers import urls_of
from clozeline.errors import ArtifactError
from clozeline.registry.fleet import Fleet
from clozeline.registry.rollout import Replica
from clozeline.workspace import Workspace


def test_urls_are_separated_by_commas(tmp_path: Path) -> None:
    assert urls_of("http://a:8000, http://b:8000", Workspace(tmp_path)) == ["http://a:8000", "http://b:8000"]


def test_a_fleet_is_read_from_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    fleet, champion = Fleet.open(address, "clozeline-encoder"), "models:/clozeline-encoder@champion"
    with pytest.raises(ArtifactError, match="no replica"):
        urls_of(champion, Workspace(tmp_path))
    fleet.create()
    for key in "ab":
        fleet.note(Replica(key=key, url=f"http://{key}:8000"))
    assert urls_of(champion, Workspace(tmp_path)) == ["http://a:8000", "http://b:8000"]
