"""Settings switch telemetry off, secrets are generated once and kept, and every variable is explained."""

import re
import stat
import subprocess
import sys
from pathlib import Path

from clozeline.system.workspace import Workspace
from tests.infra.prefect_project import ROOT, prefect_file
from tests.infra.stack.compose_file import Compose, read_env_file

INFRA = ROOT / "infra"
README = (INFRA / "README.md").read_text(encoding="utf-8")
TELEMETRY_OFF = {
    "DO_NOT_TRACK": "true",
    "DVC_NO_ANALYTICS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_MODEL_CATALOG_URI": "",
    "ORT_DISABLE_TELEMETRY": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
}
BY_HAND = {
    *("CLOZELINE_HOME", "CLOZELINE_SERVER", "CLOZELINE_SERVE_AFTER_SECONDS", "CLOZELINE_SIGNING_KEY"),
    *("PREFECT_API_AUTH_STRING", "PREFECT_API_URL", "PREFECT_HOME", "PREFECT_SERVER_API_AUTH_STRING", "PREFECT_UI_URL"),
}


def write_env(folder: Path) -> subprocess.CompletedProcess[str]:
    for name in (".env.example", "write_env.py"):
        (folder / name).write_bytes((INFRA / name).read_bytes())
    return subprocess.run([sys.executable, "write_env.py"], cwd=folder, capture_output=True, text=True, check=False)


def test_every_empty_secret_gets_different_random_bytes_once(tmp_path: Path) -> None:
    assert write_env(tmp_path).returncode == 0
    example, written = read_env_file(tmp_path / ".env.example"), read_env_file(tmp_path / ".env")
    assert list(written) == list(example)
    secrets = {name: written[name] for name, value in example.items() if not value}
    assert len(set(secrets.values())) == len(secrets)
    assert all(re.fullmatch("(GK)?[0-9a-f]{32,64}", secret) for secret in secrets.values())
    assert {name: written[name] for name, value in example.items() if value} == {n: v for n, v in example.items() if v}
    assert stat.S_IMODE((tmp_path / ".env").stat().st_mode) == 0o600
    # As the store requires them.
    assert re.fullmatch("GK[0-9a-f]{32}", written["STORE_ACCESS_KEY"])
    for name in ("STORE_SECRET_KEY", "STORE_RPC_SECRET"):
        assert re.fullmatch("[0-9a-f]{64}", written[name])
    again = write_env(tmp_path)
    assert (again.returncode, "was not changed" in again.stderr) == (1, True)
    assert read_env_file(tmp_path / ".env") == written
    ignored = subprocess.run(["git", "check-ignore", "--quiet", "infra/.env"], cwd=ROOT, check=False)
    assert ignored.returncode == 0
    assert all(not value or name.startswith("CLOZELINE_") for name, value in example.items())


def test_telemetry_is_off_as_in_a_run_without_servers(compose: Compose) -> None:
    assert compose.settings.items() >= TELEMETRY_OFF.items()
    defaults = Workspace(Path()).defaults()
    common = defaults.keys() & compose.settings.keys()
    assert TELEMETRY_OFF.keys() <= common
    assert {name: compose.settings[name] for name in common} == {name: defaults[name] for name in common}


def test_the_readme_explains_every_variable_and_names_only_files_that_exist(compose: Compose) -> None:
    explained = set(re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE))
    receivers = {receiver["variable"] for receiver in prefect_file()["receivers"]}
    assert explained == {*compose.secrets, *compose.settings, *BY_HAND, *receivers}
    named = set(re.findall(r"`((?:infra|flows|tests)/[\w./-]+)`", README)) - {"infra/.env"}
    assert named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
