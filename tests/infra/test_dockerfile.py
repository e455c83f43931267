"""infra/Dockerfile passes its linter, and has exact versions, every Python package from the lock and no root."""

import re
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
FILE = ROOT / "infra/Dockerfile"
TEXT = FILE.read_text(encoding="utf-8")
STAGES = dict(re.findall(r"^FROM \S+ AS (\w+)\n((?:(?!FROM ).*\n)*)", TEXT, re.MULTILINE))
PYTHON = re.findall(r"^FROM python:([\d.]+)", TEXT, re.MULTILINE)[0]
LOCKED = {
    canonicalize_name(line.partition("==")[0])
    for line in (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
}


def lint(path: Path) -> str:
    hadolint = str(Path(sys.executable).with_name("hadolint"))
    done = subprocess.run([hadolint, str(path)], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_the_linter_reports_nothing() -> None:
    assert lint(FILE) == ""


def test_the_linter_detects_an_unpinned_package(tmp_path: Path) -> None:
    broken = tmp_path / "Dockerfile"
    broken.write_text("FROM python:3.11.15-slim-bookworm\nRUN pip install --no-cache-dir boto3\n", encoding="utf-8")
    assert "DL3013" in lint(broken)


def test_base_images_have_exact_versions() -> None:
    outside = [image for image in re.findall(r"^FROM (\S+)", TEXT, re.MULTILINE) if image not in STAGES]
    assert outside
    assert [image for image in outside if not re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+[\w.-]*", image)] == []


def test_every_image_runs_as_a_non_root_user() -> None:
    for name, body in STAGES.items():
        if name != "python":
            assert re.findall(r"^USER (\S+)$", body, re.MULTILINE) == ["10001:10001"], name


def test_every_package_is_installed_at_its_locked_version() -> None:
    installs = re.findall(r"^RUN pip install (.+)$", TEXT, re.MULTILINE)
    assert installs
    for words in installs:
        assert words.startswith(("-c requirements.lock ", "-r requirements.lock", "--no-deps -e .")), words
        if words.startswith("-c"):
            named = [word.strip('"') for word in words.split()[2:] if word != "."]
            assert [word for word in named if canonicalize_name(Requirement(word).name) not in LOCKED] == []


def test_the_lock_pins_everything_that_the_images_install() -> None:
    """Constraints pin only the packages they name; a package missing from the lock could get any version."""
    pulled = closure(Requirement("mlflow[auth]"), Requirement("psycopg[binary]"), Requirement("boto3"))
    pulled |= closure(Requirement("prefect"), Requirement("asyncpg"), Requirement("clozeline"))
    assert pulled - LOCKED - {"clozeline"} == set()


def test_the_serving_image_holds_no_training_and_no_orchestrator() -> None:
    assert closure(Requirement("clozeline")).isdisjoint({"torch", "transformers", "datasets", "prefect", "dvc"})


def closure(*roots: Requirement) -> set[str]:
    """Return all packages that the image's Python installs with `roots`, by the metadata of the packages here."""
    python = {"python_full_version": PYTHON, "python_version": PYTHON.rpartition(".")[0]}
    seen: set[tuple[str, str]] = set()
    waiting = [(requirement.name, extra) for requirement in roots for extra in ("", *requirement.extras)]
    while waiting:
        name, extra = waiting.pop()
        if (canonicalize_name(name), extra) in seen:
            continue
        seen.add((canonicalize_name(name), extra))
        for needed in map(Requirement, requires(name) or []):
            if needed.marker is None or needed.marker.evaluate(python | {"extra": extra}):
                waiting += [(needed.name, inner) for inner in ("", *needed.extras)]
    return {name for name, _ in seen}


def test_every_path_copied_into_an_image_passes_the_ignore_file() -> None:
    rules = (ROOT / "infra/Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in rules, "only named files are included"
    allowed = [rule[1:] for rule in rules if rule.startswith("!")]
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", TEXT, re.MULTILINE)
    for source in " ".join(copied).split():
        assert source == "." or any(source == rule or source.startswith(f"{rule}/") for rule in allowed), source
    assert not any(rule.startswith(("data", "models", "dist", "infra/.env", ".git")) for rule in allowed)
