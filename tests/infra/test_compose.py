"""compose.yaml is valid, and has exact versions, no root, no open port, no secret and no installation at start."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer

from clozeline.cli import serve
from clozeline.serving.http.bodies import MAX_TIMEOUT_MILLISECONDS
from clozeline.serving.limits import MAX_BODY_SECONDS
from clozeline.serving.uvicorn_adapter import WRITING_SECONDS

ROOT = Path(__file__).parents[2]
FILE = ROOT / "infra/compose.yaml"
TEXT = FILE.read_text(encoding="utf-8")
EXACT_VERSION = re.compile(r"[\w./-]+:v?\d+\.\d+[\w.-]*(@sha256:[0-9a-f]{64})?")


@pytest.fixture(scope="module")
def services(compose: Any) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = compose.services
    return found


def schema_problems(path: Path) -> str:
    command = [str(Path(sys.executable).with_name("check-jsonschema")), "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*command, str(path)], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_compose_yaml_follows_the_compose_specification() -> None:
    assert schema_problems(FILE) == ""


def test_the_schema_check_detects_a_misspelt_key(tmp_path: Path) -> None:
    broken = tmp_path / "compose.yaml"
    broken.write_text(TEXT.replace("retries:", "retrys:"), encoding="utf-8")
    assert "retrys" in schema_problems(broken)


def test_every_image_has_an_exact_version(services: dict[str, dict[str, Any]]) -> None:
    loose = {name: it["image"] for name, it in services.items() if not EXACT_VERSION.fullmatch(it["image"])}
    assert loose == {}


def test_built_images_are_tagged_with_the_project_version(services: dict[str, dict[str, Any]]) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    built = {it["image"] for it in services.values() if "build" in it}
    assert {image.rpartition(":")[2] for image in built} == {version}


def test_minio_is_not_used() -> None:
    assert "minio" not in TEXT.lower()
    assert "minio" not in (ROOT / "infra/Dockerfile").read_text(encoding="utf-8").lower()


def test_no_service_runs_as_root(services: dict[str, dict[str, Any]]) -> None:
    users = {name: str(it.get("user", "root")) for name, it in services.items()}
    assert {name: user for name, user in users.items() if user.split(":")[0] in {"root", "0"}} == {}


def test_no_service_can_gain_rights(services: dict[str, dict[str, Any]]) -> None:
    for name, it in services.items():
        assert it["cap_drop"] == ["ALL"], name
        assert it["security_opt"] == ["no-new-privileges:true"], name


def test_our_containers_have_a_read_only_root_and_telemetry_off(services: dict[str, dict[str, Any]]) -> None:
    for name, it in services.items():
        if "build" in it:
            assert it["read_only"] is True, name
            assert it["env_file"] == ["settings.env"], name


def test_ports_are_published_on_loopback_only(services: dict[str, dict[str, Any]]) -> None:
    published = [port for it in services.values() for port in it.get("ports", [])]
    assert published
    assert [port for port in published if not port.startswith("127.0.0.1:")] == []


def test_every_server_has_a_health_check_and_restarts(services: dict[str, dict[str, Any]]) -> None:
    servers = {name for name, it in services.items() if it.get("restart") == "unless-stopped"}
    assert servers == {"postgres", "store", "mlflow", "prefect", "worker", "serving"}
    assert {name for name, it in services.items() if "healthcheck" in it} == servers


def test_a_service_waits_until_its_dependencies_are_healthy(services: dict[str, dict[str, Any]]) -> None:
    for name, it in services.items():
        for needed, how in it.get("depends_on", {}).items():
            server = "healthcheck" in services[needed]
            expected = "service_healthy" if server else "service_completed_successfully"
            assert how["condition"] == expected, f"{name} waits for {needed}"


def test_every_one_shot_job_is_waited_for(services: dict[str, dict[str, Any]]) -> None:
    """`up --wait` counts a container that has ended as failed, unless a service depends on its success. `up` does not
    start those of a profile.
    """
    waited_for = {needed for it in services.values() for needed in it.get("depends_on", {})}
    assert {name for name, it in services.items() if "healthcheck" not in it and "profiles" not in it} <= waited_for


def test_serve_takes_the_options_of_its_service(compose: Any) -> None:
    program, verb, *options = compose.command("serving")
    app = typer.Typer()
    app.command()(serve.serve)
    given = typer.main.get_command(app).make_context(verb, options).params
    assert (program, verb) == ("clozeline", "serve")
    assert given["host"] == "0.0.0.0"
    assert compose.services["serving"]["ports"] == [f"127.0.0.1:{given['port']}:{given['port']}"]


def test_serving_has_a_stop_timeout_that_covers_its_longest_request(services: dict[str, dict[str, Any]]) -> None:
    granted = services["serving"]["stop_grace_period"]
    assert granted == f"{MAX_BODY_SECONDS + MAX_TIMEOUT_MILLISECONDS / 1000 + WRITING_SECONDS:.0f}s"


def test_containers_install_no_packages_at_start(services: dict[str, dict[str, Any]]) -> None:
    words = {name: " ".join(it.get("command", [])) for name, it in services.items()}
    assert {name: said for name, said in words.items() if re.search(r"\b(pip|apt|apk|uv|curl)\b", said)} == {}


def test_serving_cannot_reach_the_databases(services: dict[str, dict[str, Any]]) -> None:
    assert set(services["serving"]["networks"]).isdisjoint(services["postgres"]["networks"])


def test_mounted_files_and_build_contexts_exist(services: dict[str, dict[str, Any]]) -> None:
    for it in services.values():
        for volume in it.get("volumes", []):
            source = volume.split(":")[0]
            assert not source.startswith(".") or (FILE.parent / source).exists(), source
        if "build" in it:
            assert (FILE.parent / it["build"]["context"] / it["build"]["dockerfile"]).is_file()


def test_secrets_come_from_the_env_file_and_compose_refuses_to_start_without_them(compose: Any) -> None:
    required = set(re.findall(r"\$\{(\w+):\?\}", TEXT))
    optional = set(re.findall(r"\$\{(\w+):-", TEXT))
    assert required | optional == set(compose.secrets), "compose.yaml and .env.example name different variables"
    assert all(name.startswith("CLOZELINE_") for name in optional)
    literal = re.findall(r"^\s+\w*(?:PASSWORD|SECRET|_KEY)\w*: (?!\$\{)(\S+)", TEXT, re.MULTILINE)
    assert literal == []
