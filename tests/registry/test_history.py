"""A package in `dist/` is found in the registry by its bytes, with its release decision and its figures."""

import shutil
from pathlib import Path

import pytest

from clozeline.registry.decisions import Decision, Gate, released
from clozeline.registry.publishing import Evidence, Publisher
from clozeline.system.errors import ArtifactError
from clozeline.system.workspace import Workspace


@pytest.fixture
def address(tmp_path: Path) -> str:
    return Workspace(tmp_path).defaults()["MLFLOW_TRACKING_URI"]


def test_the_newest_decision_the_aliases_and_the_latencies_are_shown(
    address: str, tmp_path: Path, encoder_package: Path
) -> None:
    package = shutil.copytree(encoder_package, tmp_path / "dist" / "encoder")
    publisher = Publisher(address)
    assert released(address, package) is None
    metrics = tmp_path / "evaluate.json"
    metrics.write_text("{}")
    version = publisher.publish(package, "clozeline-encoder", Evidence({"evaluate.json": metrics}, {}))
    found = released(address, package)
    assert found
    assert (found.version, found.aliases, found.decision, found.latency) == (version, (), None, {})

    gate = Gate("int8_agreement", 0.97, "at least", 0.96)
    refused = Decision(outcome="refused", gates=(gate,))
    for time, decision in (
        ("20260101T000000Z", refused),
        ("20260102T000000Z", refused.model_copy(update={"outcome": "promoted"})),
    ):
        publisher.record(version, decision, f"{time}.json")
    publisher.registry.promote(version)
    publisher.measured(version, {"latency/int8_text_milliseconds": 1.5})
    found = released(address, package)
    assert found
    assert found.decision
    assert (found.decision.outcome, found.decision.gates) == ("promoted", (gate,))
    assert found.aliases == ("champion",)
    assert found.latency == {"int8_text_milliseconds": 1.5}


def test_a_missing_package_is_named(address: str, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"dist/encoder is not an exported model"):
        released(address, tmp_path / "dist" / "encoder")
