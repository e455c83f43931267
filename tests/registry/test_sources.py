"""Which models the arguments of `serve` select, and under which names."""

import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

from clozeline.registry import models
from clozeline.registry.models import FetchedPackage
from clozeline.registry.sources import ModelSource, default_for, default_sources, parse_sources
from clozeline.serving.loading import open_source
from clozeline.system.errors import ArtifactError, ParamsError
from tests.make.packages import write_classifier, write_encoder


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project folder, with no registry."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(models, "champions", list)
    return tmp_path


def test_each_model_has_its_given_name_or_that_of_its_folder_or_registration(project: Path) -> None:
    (project / "a=b").mkdir()
    for text, name in (
        ("dist/encoder/", "encoder"),
        ("models:/clozeline-encoder@champion", "clozeline-encoder"),
        ("models:/clozeline-encoder/3", "clozeline-encoder"),
        ("next=models:/clozeline-encoder@candidate", "next"),
        ("a=b", "a=b"),  # a folder of that name
    ):
        place = text if name == text else text.removeprefix(f"{name}=")
        assert ModelSource.parse(text) == ModelSource(name, place)
    with pytest.raises(ParamsError) as raised:
        parse_sources(["models:/clozeline-encoder@champion", "models:/clozeline-encoder@candidate"])
    assert "clozeline-encoder-2=models:/clozeline-encoder@candidate" in raised.value.do


def test_champions_come_before_folders_and_encoders_before_other_folders(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_classifier(project / "dist" / "a-classifier")
    write_encoder(project / "dist" / "the-encoder")
    assert [source.name for source in default_sources()] == ["the-encoder", "a-classifier"]
    monkeypatch.setattr(models, "champions", lambda: ["models:/clozeline-encoder@champion"])
    assert [source.name for source in default_sources()] == ["clozeline-encoder"]


def test_a_verb_without_a_model_uses_a_suitable_one(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArtifactError) as raised:
        default_for("fill-mask")
    assert "make run" in raised.value.do
    champions = ["models:/clozeline-encoder@champion", "models:/clozeline-library@champion"]
    monkeypatch.setattr(models, "champions", lambda: champions)
    assert [default_for("fill-mask").place, default_for("text-classification").place] == champions
    write_encoder(project / "dist" / "encoder")
    write_encoder(project / "dist" / "other")
    assert default_for("fill-mask").place == "dist/encoder"


def test_the_released_model_of_the_task_is_found_and_of_two_that_could_answer_one_has_to_be_named(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = {f"models:/clozeline-{name}@champion": project / "released" / name for name in ("docsearch", "library")}
    for folder, task in zip(folders.values(), ("feature-extraction", "text-classification"), strict=True):
        write_encoder(folder)
        manifest = folder / "manifest.json"
        manifest.write_text(manifest.read_text().replace("fill-mask", task))
    monkeypatch.setattr(models, "champions", lambda: ["models:/clozeline-encoder@champion", *folders])
    monkeypatch.setattr(models, "fetch", lambda uri: FetchedPackage(folders[uri], None))
    assert default_for("text-classification").name == "clozeline-library"
    assert default_for("feature-extraction").name == "clozeline-docsearch"
    for name in ("library", "topic"):
        write_classifier(project / "dist" / name)
    with pytest.raises(ParamsError) as raised:
        default_for("text-classification")
    assert "dist/library, dist/topic" in str(raised.value)


def test_a_model_name_that_is_invalid_in_a_header_is_percent_encoded(project: Path) -> None:
    write_encoder(project / "dist" / "模型 100%")
    (source,) = parse_sources(["dist/模型 100%"])
    headers = open_source(source, "int8").identity.headers
    assert headers["x-model"] == "%E6%A8%A1%E5%9E%8B%20100%25"
    assert unquote(headers["x-model"]) == source.name
    assert sys.float_info.min / 2 > 0, "denormals are flushed to zero, for torch in this process too"
