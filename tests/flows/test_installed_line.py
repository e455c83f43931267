"""An installed wheel can run the pipeline without a checkout on its path."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from clozeline.system.workspace import Workspace
from tests.make.session import PutDatabase

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the unpacked wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(CHECKOUT / name, folder / name)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(CHECKOUT / "src", folder / "src", ignore=ignored)  # with the files behind its links
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", "dist"]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, "."], cwd=folder, check=True)
    (wheel,) = (folder / "dist").glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


def test_the_pipeline_runs_from_an_installed_wheel_without_a_checkout(
    installed: Path, toy: Path, put_prefect_database: PutDatabase
) -> None:
    put_prefect_database(Workspace(toy).prefect / "prefect.db")
    params = YAML().load(toy / "params.yaml")
    params["export"]["models"] = {}  # the toy's stages make no model
    YAML().dump(params, toy / "params.yaml")
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "PREFECT_"))}
    environment = {**ours, "PYTHONPATH": str(installed), "PREFECT_HOME": Workspace(toy).defaults()["PREFECT_HOME"]}
    where = [sys.executable, "-c", "import clozeline.flows; print(clozeline.flows.__file__)"]
    found = subprocess.run(where, cwd=toy, env=environment, check=True, capture_output=True, text=True).stdout
    assert Path(found.strip()).is_relative_to(installed)
    run = [sys.executable, "-m", "clozeline", "run", "--no-release"]
    ran = subprocess.run(run, cwd=toy, env=environment, check=False, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert (toy / "signed/ada.txt").read_text() == "ONE TWO ada"
