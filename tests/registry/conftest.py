"""The packages that these tests register are tiny ones: nothing here depends on what a training gave."""

from pathlib import Path

import pytest

from tests.make.packages import write_classifier, write_encoder

CARD = "---\nlibrary_name: onnx\n---\n\n# encoder\n\nA tiny one.\n\n## Use\n\n`clozeline fill`\n"


@pytest.fixture(scope="session")
def encoder_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "encoder"
    write_encoder(folder)
    (folder / "README.md").write_text(CARD)
    return folder


@pytest.fixture(scope="session")
def classifier_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "library"
    write_classifier(folder)
    return folder
