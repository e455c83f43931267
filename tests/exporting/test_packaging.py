"""A package has the card of its model with the figures of the export, and lists its files, its base model and what
serves it, as tools for CycloneDX read it.
"""

import hashlib
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from clozeline.exporting.ladder import Climbed
from clozeline.exporting.packaging import write_card, write_sbom
from clozeline.records.package import CARD, FILES, SBOM, read_manifest
from tests.make.packages import card_in, write_classifier


def test_the_package_card_keeps_the_model_card_and_reports_missing_int8(tmp_path: Path) -> None:
    model, folder = tmp_path / "model", tmp_path / "package"
    model.mkdir()
    write_classifier(folder)
    (model / CARD).write_text("---\nlicense: mit\nlibrary_name: transformers\n---\n\n# topics\n\n## Figures\n\ngood\n")
    write_card(model, folder, read_manifest(folder), Climbed(rungs=(), served=None), base_model="someone/encoder")
    card = card_in(folder)
    changed = {"library_name": "onnxruntime", "pipeline_tag": "text-classification", "base_model": "someone/encoder"}
    assert card.facts == {"license": "mit"} | changed
    assert (list(card.sections), card.title) == (["Figures", "Package"], "topics")
    assert "none of 0 INT8 schemes passed" in card.sections["Package"]


FROM_THE_HUB = "---\nlicense: apache-2.0\nbase_model: someone/encoder\n---\n\n# a classifier\n"


def sbom_with(folder: Path, card: str) -> str:
    write_classifier(folder)
    (folder / CARD).write_text(card, encoding="utf-8")
    draft = read_manifest(folder)
    (folder / FILES.manifest).unlink()  # the export writes it later, with the hash of the SBOM
    write_sbom(folder, "topics", draft)
    return (folder / SBOM).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def from_the_hub(tmp_path_factory: pytest.TempPathFactory) -> str:
    return sbom_with(tmp_path_factory.mktemp("hub") / "package", FROM_THE_HUB)


def test_the_same_package_has_the_same_valid_sbom_with_the_hash_of_every_other_file(
    tmp_path: Path, from_the_hub: str
) -> None:
    assert sbom_with(tmp_path / "package", FROM_THE_HUB) == from_the_hub
    told = json.loads(from_the_hub)
    files = [file for file in (tmp_path / "package").iterdir() if file.name != SBOM]
    hashes = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    listed = told["metadata"]["component"]["components"]
    assert {file["name"]: file["hashes"][0]["content"] for file in listed} == hashes
    of_cyclonedx = JsonStrictValidator(SchemaVersion.V1_6)
    assert of_cyclonedx.validate_str(from_the_hub) is None
    told["metadata"]["component"]["colour"] = "red"
    assert "colour" in str(of_cyclonedx.validate_str(json.dumps(told)))


def test_the_sbom_names_the_base_model_with_its_licence_and_what_serves_but_nothing_that_only_trains(
    from_the_hub: str,
) -> None:
    told = json.loads(from_the_hub)
    model = told["metadata"]["component"]
    licences = [{"license": {"name": "apache-2.0"}}]
    ancestor = {"type": "machine-learning-model", "name": "someone/encoder", "licenses": licences}
    assert (model["licenses"], model["pedigree"]["ancestors"]) == (licences, [ancestor])
    packages: dict[str, dict[str, Any]] = {package["bom-ref"]: package for package in told["components"]}
    onnxruntime = packages["onnxruntime"]
    assert onnxruntime["purl"] == f"pkg:pypi/onnxruntime@{version('onnxruntime')}"
    assert onnxruntime["licenses"] == [{"license": {"name": "MIT License"}}]
    assert "purl" not in packages["clozeline"], "no index has it"
    assert packages.keys().isdisjoint({"torch", "transformers", "prefect", "dvc", "pytest"})
    needs = {one["ref"]: set(one["dependsOn"]) for one in told["dependencies"]}
    reached = {"clozeline"}
    while more := set().union(*(needs[name] for name in reached)) - reached:
        reached |= more
    assert reached == packages.keys()
