"""The wheel that a registered model carries installs `clozeline` where no index has it."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from clozeline.registry.wheel import write_wheel


def test_the_wheel_installs_the_package_and_its_command(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path)
    install = ["install", "--quiet", "--no-index", "--no-deps", "--no-compile", "--target", str(tmp_path / "away")]
    subprocess.run([sys.executable, "-m", "pip", *install, str(wheel)], check=True)
    # The interpreter's own site-packages name this checkout, so the installed copy has to come first.
    program = "import clozeline, clozeline.flows, clozeline.inference.package; print(clozeline.__file__)"
    environment = {"PYTHONPATH": str(tmp_path / "away")}
    command = [sys.executable, "-P", "-c", program]
    said = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout
    assert said.strip() == str(tmp_path / "away/clozeline/__init__.py")
    assert (tmp_path / "away/bin/clozeline").is_file()


def test_the_same_files_give_the_same_wheel_without_compiled_ones(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one, two = (write_wheel(tmp_path / name) for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()
    names = zipfile.ZipFile(one).namelist()
    assert any(name.endswith(".html") for name in names), "pages are part of the package"
    assert not [name for name in names if "__pycache__" in name]


@pytest.mark.parametrize("part", ["METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"])
def test_the_wheel_has_its_metadata(part: str, tmp_path: Path) -> None:
    assert any(name.endswith(f".dist-info/{part}") for name in zipfile.ZipFile(write_wheel(tmp_path)).namelist())
