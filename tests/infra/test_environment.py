"""Settings switch telemetry off, secrets are generated once and kept, and every variable is explained."""

import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clozeline.system.workspace import Workspace
from tests.infra.prefect_project import prefect_file

ROOT = Path(__file__).parents[2]
INFRA = ROOT / "infra"


def write_env(folder: Path) -> subprocess.CompletedProcess[str]:
    for name in (".env.example", "write_env.py"):
        (folder / name).write_bytes((INFRA / name).read_bytes())
    return subprocess.run([sys.executable, "write_env.py"], cwd=folder, capture_output=True, text=True, check=False)


def values(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^(\w+)=(.*)$", path.read_text(encoding="utf-8"), re.MULTILINE))


def test_every_empty_secret_gets_different_random_bytes(tmp_path: Path) -> None:
    assert write_env(tmp_path).returncode == 0
    example, written = values(tmp_path / ".env.example"), values(tmp_path / ".env")
    assert list(written) == list(example)
    secrets = {name: written[name] for name, value in example.items() if not value}
    assert len(set(secrets.values())) == len(secrets)
    assert all(re.fullmatch("(GK)?[0-9a-f]{32,64}", secret) for secret in secrets.values())
    assert {name: written[name] for name, value in example.items() if value} == {n: v for n, v in example.items() if v}
    assert stat.S_IMODE((tmp_path / ".env").stat().st_mode) == 0o600


def test_store_keys_have_the_format_that_the_store_requires(tmp_path: Path) -> None:
    write_env(tmp_path)
    written = values(tmp_path / ".env")
    assert re.fullmatch("GK[0-9a-f]{32}", written["STORE_ACCESS_KEY"])
    assert re.fullmatch("[0-9a-f]{64}", written["STORE_SECRET_KEY"])
    assert re.fullmatch("[0-9a-f]{64}", written["STORE_RPC_SECRET"])


def test_existing_secrets_are_kept(tmp_path: Path) -> None:
    write_env(tmp_path)
    before = (tmp_path / ".env").read_bytes()
    again = write_env(tmp_path)
    assert again.returncode == 1
    assert "was not changed" in again.stderr
    assert (tmp_path / ".env").read_bytes() == before


def test_git_ignores_the_secrets() -> None:
    ignored = subprocess.run(["git", "check-ignore", "--quiet", "infra/.env"], cwd=ROOT, check=False)
    assert ignored.returncode == 0
    assert all(not value or name.startswith("CLOZELINE_") for name, value in values(INFRA / ".env.example").items())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DO_NOT_TRACK", "true"),
        ("DVC_NO_ANALYTICS", "1"),
        ("HF_HUB_DISABLE_TELEMETRY", "1"),
        ("MLFLOW_DISABLE_TELEMETRY", "true"),
        ("MLFLOW_MODEL_CATALOG_URI", ""),
        ("ORT_DISABLE_TELEMETRY", "1"),
        ("PREFECT_SERVER_ANALYTICS_ENABLED", "false"),
    ],
)
def test_telemetry_is_off(compose: Any, name: str, value: str) -> None:
    assert compose.settings[name] == value


def test_the_settings_match_those_of_a_run_without_servers(compose: Any) -> None:
    defaults = Workspace(Path()).defaults()
    common = set(defaults) & set(compose.settings)
    assert {
        "DO_NOT_TRACK",
        "DVC_NO_ANALYTICS",
        "MLFLOW_DISABLE_TELEMETRY",
        "ORT_DISABLE_TELEMETRY",
        "PREFECT_SERVER_ANALYTICS_ENABLED",
    } <= common
    assert {name: compose.settings[name] for name in common} == {name: defaults[name] for name in common}


def test_a_shell_reads_the_settings_as_compose_does(compose: Any) -> None:
    shell = subprocess.run(
        ["sh", "-euc", "set -a; . ./settings.env; env"], cwd=INFRA, env={}, capture_output=True, text=True, check=True
    )
    read = dict(line.partition("=")[::2] for line in shell.stdout.splitlines())
    assert {name: read.get(name) for name in compose.settings} == compose.settings


def test_the_readme_explains_every_variable(compose: Any) -> None:
    readme = (INFRA / "README.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"^\| `(\w+)` \|", readme, re.MULTILINE))
    receivers = {receiver["variable"] for receiver in prefect_file()["receivers"]}
    by_hand = {
        "CLOZELINE_HOME",
        "CLOZELINE_SERVER",
        "CLOZELINE_SERVE_AFTER_SECONDS",
        "CLOZELINE_SIGNING_KEY",
        "PREFECT_API_AUTH_STRING",
        "PREFECT_API_URL",
        "PREFECT_HOME",
        "PREFECT_SERVER_API_AUTH_STRING",
        "PREFECT_UI_URL",
        *receivers,
    }
    assert explained == {*compose.secrets, *compose.settings, *by_hand}


def test_the_readme_names_only_files_that_exist() -> None:
    readme = (INFRA / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:infra|flows|tests)/[\w./-]+)`", readme)) - {"infra/.env"}
    assert named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
