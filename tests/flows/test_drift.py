"""The drift flow polls a server, keeps its state between runs, and fails if there is drift."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey

from clozeline.flows import drift as room
from clozeline.flows.drift import drift
from clozeline.orchestration.drift import Served, Traffic
from clozeline.serving.errors import KEYS_VARIABLE
from clozeline.system.errors import ParamsError
from tests.make.processes import wait_for

pytestmark = pytest.mark.usefixtures("prefect_server")
Asked = Callable[[int, int], None]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Function that sets how many short and long texts the server has counted since it started."""
    monkeypatch.setenv("CLOZELINE_SERVER", "http://serving:8000, ")
    monkeypatch.setenv(KEYS_VARIABLE, " the-key-of-the-server , another-key-of-it ")

    def count(short: int, long: int) -> None:
        def ask(url: str, key: str | None) -> dict[str, Served]:
            assert (url, key) == ("http://serving:8000", "the-key-of-the-server")
            traffic = Traffic(texts_by_length={"8.0": short, "64.0": long}, tokens=8 * short + 64 * long)
            return {"encoder": Served(version="7", sha256="f" * 64, traffic=traffic)}

        monkeypatch.setattr(room, "ask", ask)

    return count


def test_a_server_that_only_a_run_names_does_not_get_the_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CLOZELINE_SERVER", "http://serving:8000")
    monkeypatch.setenv(KEYS_VARIABLE, "the-key")
    sent: dict[str, str | None] = {}

    def ask(url: str, key: str | None) -> dict[str, Served]:
        sent[url] = key
        return {"encoder": Served(version="7", sha256="f" * 64, traffic=Traffic())}

    monkeypatch.setattr(room, "ask", ask)
    drift(tmp_path, url="http://serving:8000,http://elsewhere:8000")
    assert sent == {"http://serving:8000": "the-key", "http://elsewhere:8000": None}


def events_about(resource: str) -> list[dict[str, Any]]:
    """Return the server's events about the resource, newest first."""
    body = {"filter": {"resource": {"id": [resource]}}, "limit": 10}
    with get_client(sync_client=True) as client:
        heard: list[dict[str, Any]] = client.request("POST", "/events/filter", json=body).json()["events"]
        return heard


def test_only_a_run_that_sees_drift_fails_and_it_reports_the_figures(asked: Asked, tmp_path: Path) -> None:
    asked(1_200, 0)
    (first,) = drift(tmp_path)
    assert first.num_texts == 0
    asked(2_400, 0)
    (second,) = drift(tmp_path)
    assert (second.num_texts, second.is_drift) == (1_200, False)
    asked(2_400, 1_000)
    with pytest.raises(ParamsError, match="limits of the drift flow"):
        drift(tmp_path, limits={"max_indexes": 9.0})
    state = drift(tmp_path, return_state=True)
    assert (state.name, state.is_failed()) == ("Drifted", True)
    assert "the traffic has drifted: encoder: length_index" in str(state.message)
    assert wait_for(lambda: bool(events_about("clozeline.model.encoder")), 240)
    (event,) = events_about("clozeline.model.encoder")
    assert (event["event"], event["payload"]["version"]) == ("clozeline.drift", "7")
    assert event["payload"]["shifts"][0]["name"] == "length_index"
    asked(3_500, 1_000)
    (after,) = drift(tmp_path)
    assert not after.is_drift
    assert len(list((tmp_path / "work/drift").iterdir())) == 1
    with get_client(sync_client=True) as client:
        key = ArtifactFilter(key=ArtifactFilterKey(any_=["drift"]))
        (shown,) = client.read_artifacts(artifact_filter=key, limit=1)
    assert "encoder version 7" in str(shown.data)
