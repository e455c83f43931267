"""A package has the card of its model with the figures of the export."""

from pathlib import Path

from clozeline.exporting.ladder import Climbed
from clozeline.exporting.packaging import write_card
from clozeline.records.package import read_manifest
from tests.make.packages import card_in

NOTHING_PASSED = Climbed(rungs=(), served=None)


def test_the_package_card_keeps_the_model_card_and_reports_missing_int8(
    classifier_package: Path, tmp_path: Path
) -> None:
    model, folder = tmp_path / "model", tmp_path / "package"
    model.mkdir()
    folder.mkdir()
    front = "license: mit\nlibrary_name: transformers"
    (model / "README.md").write_text(f"---\n{front}\n---\n\n# topics\n\n## Figures\n\ngood\n")
    write_card(model, folder, read_manifest(classifier_package), NOTHING_PASSED)
    card = card_in(folder)
    assert list(card.sections) == ["Figures", "Package"]
    assert card.facts == {"license": "mit", "library_name": "onnxruntime", "pipeline_tag": "text-classification"}
    assert "none of 0 INT8 schemes passed" in card.sections["Package"]


def test_a_package_gets_a_card_even_if_the_model_has_none(classifier_package: Path, tmp_path: Path) -> None:
    manifest = read_manifest(classifier_package)
    write_card(tmp_path / "none", tmp_path, manifest, NOTHING_PASSED)
    card = card_in(tmp_path)
    assert card.title == f"{manifest.family}, text-classification"
    assert list(card.sections) == ["Package"]
