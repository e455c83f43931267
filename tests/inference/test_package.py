"""Opening a package chooses what answers, refuses damaged packages, and needs only the serving install."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clozeline.inference.classifier import Classifier
from clozeline.inference.language import OpenEncoder
from clozeline.inference.package import load
from clozeline.records.package import FILES
from clozeline.system.errors import ArtifactError


def test_the_task_in_the_manifest_decides_the_model_class(encoder_package: Path, classifier_package: Path) -> None:
    assert isinstance(load(encoder_package), OpenEncoder)
    assert isinstance(load(classifier_package), Classifier)


def test_int8_and_fp32_are_different_graphs(encoder_package: Path) -> None:
    int8, fp32 = load(encoder_package), load(encoder_package, precision="fp32")
    assert isinstance(int8, OpenEncoder)
    assert isinstance(fp32, OpenEncoder)
    assert (int8.embed(["the model"]) != fp32.embed(["the model"])).any()


@pytest.mark.parametrize("name", [FILES.int8, FILES.tokenizer])
def test_a_damaged_package_is_refused(encoder_package: Path, tmp_path: Path, name: str) -> None:
    package = Path(shutil.copytree(encoder_package, tmp_path / "package"))
    with (package / name).open("ab") as file:
        file.write(b" ")
    with pytest.raises(ArtifactError, match=name.replace(".", r"\.")):
        load(package)


def test_a_package_opens_with_only_the_serving_install(encoder_package: Path) -> None:
    heavy = (
        "{'torch', 'transformers', 'optimum', 'onnx', 'pyarrow', 'pandas', 'sklearn', 'scipy', 'clozeline.exporting'}"
    )
    code = (
        "import sys; from pathlib import Path; from clozeline.inference import latency; "
        f"latency.load(Path({str(encoder_package)!r})).fill(['the [MASK]']); print(sorted({heavy} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
