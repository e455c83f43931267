"""infra/Dockerfile passes its linter; images have exact versions, locked packages, a bill of materials and no root."""

import json
import re
import shlex
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.house.test_lock import LOCK, required_by
from tests.infra.prefect_project import ROOT

FILE = ROOT / "infra/Dockerfile"
TEXT = FILE.read_text(encoding="utf-8")
STAGES = dict(re.findall(r"^FROM \S+ AS (\w+)\n((?:(?!FROM ).*\n)*)", TEXT, re.MULTILINE))
SBOM = re.compile(r"^RUN --mount=type=bind,from=inventory\S+ \\\n +(\S+/cyclonedx-py .+)$", re.MULTILINE)
# Tools of infra/inventory.lock, as `make test-deployment` installs them.
INVENTORY = Path(sys.prefix) / "inventory/bin"
PYTHON = re.findall(r"^FROM python:([\d.]+)", TEXT, re.MULTILINE)[0]
LOCKED = {canonicalize_name(pin.name) for pin in LOCK}


def closure(*roots: str) -> set[str]:
    """Return all packages that the image's Python installs with `roots`."""
    return {canonicalize_name(one.name) for one in required_by(map(Requirement, roots), PYTHON)}


def test_the_linter_reports_nothing_and_detects_an_unpinned_package(tmp_path: Path) -> None:
    def lint(path: Path) -> str:
        hadolint = str(Path(sys.executable).with_name("hadolint"))
        done = subprocess.run([hadolint, str(path)], capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    assert lint(FILE) == ""
    broken = tmp_path / "Dockerfile"
    broken.write_text("FROM python:3.11.15-slim-bookworm\nRUN pip install --no-cache-dir boto3\n", encoding="utf-8")
    assert "DL3013" in lint(broken)


def test_every_image_has_an_exact_base_and_runs_as_a_non_root_user() -> None:
    outside = [image for image in re.findall(r"^FROM (\S+)", TEXT, re.MULTILINE) if image not in STAGES]
    assert outside
    assert [image for image in outside if not re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+[\w.-]*", image)] == []
    users = {name: re.findall(r"^USER (\S+)$", body, re.MULTILINE) for name, body in STAGES.items()}
    assert {name for name, found in users.items() if found != ["10001:10001"]} == {"python"}


def test_every_package_is_installed_at_its_locked_version() -> None:
    installs = re.findall(r"^(?:RUN| +&&) \S*pip install (.+)$", TEXT, re.MULTILINE)
    assert len(installs) == TEXT.count("pip install")
    for words in installs:
        locked = ("-c requirements.lock ", "-r requirements.lock", "-r inventory.lock", "--no-deps -e .")
        assert words.startswith(locked), words
        if words.startswith("-c"):
            named = [word.strip('"') for word in words.split()[2:] if word != "."]
            assert [word for word in named if canonicalize_name(Requirement(word).name) not in LOCKED] == []


def test_the_lock_pins_everything_that_the_images_install() -> None:
    """Constraints pin only the packages they name; a package missing from the lock could get any version."""
    pulled = closure("mlflow[auth]", "psycopg[binary]", "boto3", "prefect", "asyncpg", "clozeline")
    assert pulled - LOCKED - {"clozeline"} == set()


def test_the_serving_image_holds_no_training_and_no_orchestrator() -> None:
    assert closure("clozeline").isdisjoint({"torch", "transformers", "datasets", "prefect", "dvc"})


def test_every_image_on_python_lists_its_packages_after_the_last_is_installed() -> None:
    on_python = re.findall(r"^FROM python AS (\w+)$", TEXT, re.MULTILINE)
    assert on_python == ["inventory", "mlflow", "prefect", "worker", "serving"]
    for name in on_python[1:]:
        assert len(SBOM.findall(STAGES[name])) == 1, name
        assert "install" not in SBOM.split(STAGES[name])[1], name


@pytest.mark.deployment
def test_the_command_of_the_images_lists_the_packages_of_a_python_environment(tmp_path: Path) -> None:
    venv.create(tmp_path / "image", symlinks=True)
    described = next((tmp_path / "image").glob("lib/python*/site-packages")) / "toy-1.2.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.4\nName: toy\nVersion: 1.2\nLicense-Expression: MIT\n")
    (command,) = {found[1] for found in SBOM.finditer(TEXT)}
    out = tmp_path / "python.cdx.json"
    told = command.replace("/usr/share/sbom/python.cdx.json", str(out)).replace("/usr/local", str(tmp_path / "image"))
    words = shlex.split(told)
    words[0] = str(INVENTORY / Path(words[0]).name)
    subprocess.run(words, check=True, capture_output=True)  # it also validates
    listed = json.loads(out.read_bytes())
    assert {"serialNumber", "timestamp"}.isdisjoint({*listed, *listed["metadata"]}), "the same packages, the same bytes"
    (toy,) = listed["components"]
    assert (toy["purl"], toy["licenses"][0]["license"]["id"]) == ("pkg:pypi/toy@1.2", "MIT")


def test_every_path_copied_into_an_image_passes_the_ignore_file() -> None:
    rules = (ROOT / "infra/Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in rules, "only named files are included"
    allowed = [rule[1:] for rule in rules if rule.startswith("!")]
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", TEXT, re.MULTILINE)
    for source in " ".join(copied).split():
        assert source == "." or any(source == rule or source.startswith(f"{rule}/") for rule in allowed), source
    assert not any(rule.startswith(("data", "models", "dist", "infra/.env", ".git")) for rule in allowed)
