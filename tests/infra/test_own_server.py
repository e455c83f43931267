"""The server, deployment, worker and status of infra/README.md, as a person types them: nobody else gets in."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from tests.infra.prefect_project import ROOT, write_flows
from tests.infra.stack.compose_file import read_env_file
from tests.make.processes import answers, wait_for
from tests.make.projects import make_toy
from tests.make.session import PutDatabase

SECONDS = 240.0


@dataclass(frozen=True)
class Project:
    """A project and what a person has in the environment of both terminals."""

    root: Path
    port: int
    environment: dict[str, str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/api"

    @property
    def password(self) -> str:
        return (self.root / f"work/prefect-{self.port}.password").read_text().strip()

    def api(self, **given: object) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60, **given)  # type: ignore[arg-type]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", *arguments]
        return subprocess.run(command, cwd=self.root, env=self.environment, capture_output=True, text=True, check=False)

    @contextmanager
    def running(self, *command: str) -> Iterator[None]:
        with (self.root / "said").open("ab") as said:
            process = subprocess.Popen(
                [sys.executable, *command], cwd=self.root, env=self.environment, stdout=said, stderr=said
            )
        try:
            yield
        finally:
            process.terminate()
            process.wait(SECONDS)


@pytest.fixture(scope="module")
def project(
    tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int], put_prefect_database: PutDatabase
) -> Iterator[Project]:
    """A project whose server runs."""
    root = make_toy(tmp_path_factory.mktemp("own"))
    write_flows(root)
    (root / "infra/prefect").mkdir(parents=True)
    shutil.copy(ROOT / "infra/prefect.yaml", root / "infra")
    shutil.copy(ROOT / "infra/prefect/start_server.py", root / "infra/prefect")
    put_prefect_database(root / "work/prefect/prefect.db")
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "CLOZELINE_"))}
    ours |= read_env_file(ROOT / "infra/settings.env")
    port = free_port()
    made = Project(root, port, ours | {"PREFECT_HOME": f"{root}/work/prefect", "PREFECT_SERVER_API_PORT": str(port)})
    made.environment["PREFECT_API_URL"] = made.url
    with made.running("infra/prefect/start_server.py"):
        assert wait_for(lambda: answers(f"{made.url}/health"), SECONDS), (root / "said").read_text()
        yield made


EVIL = {"Origin": "https://evil.example", "Host": "evil.example"}


@pytest.mark.parametrize("headers", [EVIL, {"Authorization": "Basic Y2xvemVsaW5lOmd1ZXNzZWQ="}])
def test_a_stranger_neither_reads_secrets_nor_deploys(project: Project, headers: dict[str, str]) -> None:
    with project.api(headers=headers) as api:
        answers = [
            api.post("/block_documents/filter", json={"include_secrets": True}),
            api.post("/deployments/filter", json={}),
            api.post("/work_pools/", json={"name": "evil", "type": "process"}),
            api.get("/admin/settings"),
        ]
    assert [answer.status_code for answer in answers] == [401] * 4


def test_a_stranger_gets_no_stream(project: Project) -> None:
    for path in ("events/in", "events/out", "logs/out"):
        address = f"ws://127.0.0.1:{project.port}/api/{path}"
        with pytest.raises(WebSocketException), connect(address):
            pass
        with connect(address, subprotocols=[Subprotocol("prefect")]) as stream:
            stream.send(json.dumps({"type": "auth", "token": "guessed"}))
            with pytest.raises(WebSocketException):
                stream.recv(timeout=60)


def test_deployment_status_worker_and_flow_run_find_the_password(project: Project) -> None:
    deployed = project.run("clozeline.flows.deploy")
    assert deployed.returncode == 0, deployed.stderr
    user, _, secret = project.password.partition(":")
    with (
        project.running("-m", "clozeline.flows.worker", "--pool", "clozeline"),
        project.api(auth=(user, secret)) as api,
    ):
        nightly = api.get("/deployments/name/nightly/nightly").raise_for_status().json()["id"]
        run = api.post(f"/deployments/{nightly}/create_flow_run", json={}).raise_for_status().json()["id"]

        def has_ended() -> bool:
            return str(api.get(f"/flow_runs/{run}").raise_for_status().json()["state"]["type"]) == "COMPLETED"

        assert wait_for(has_ended, SECONDS), (project.root / "said").read_text()
        lines = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
        assert not [line for line in lines if secret in line], "other users see command lines"
    assert (project.root / "ran-in.txt").exists()
    status = project.run("clozeline", "status", "--json")
    (nightly,) = [one for one in json.loads(status.stdout)["runs"] if one["deployment"] == "nightly"]
    assert nightly["state"] == "Completed"
    run = project.run("clozeline", "run", "--no-release")
    assert "sign@alan: executed" in run.stderr, run.stderr
    told = [run.stdout, run.stderr, status.stdout, status.stderr, deployed.stdout, deployed.stderr]
    logs = [file.read_text(errors="replace") for file in (project.root / "work/logs").rglob("*.log")]
    assert logs
    assert not [text for text in (*told, *logs, (project.root / "said").read_text()) if secret in text]
    assert f"work/prefect-{project.port}.password" in (project.root / "said").read_text()


def test_another_project_is_refused_with_what_to_do(project: Project, tmp_path: Path) -> None:
    other = Project(make_toy(tmp_path), project.port, project.environment)
    shutil.copytree(project.root / "infra", other.root / "infra")
    for command in (("clozeline.flows.deploy",), ("clozeline", "run", "--no-release")):
        refused = other.run(*command)
        assert refused.returncode == 2
        assert "export PREFECT_API_AUTH_STRING=" in refused.stderr + refused.stdout
        assert "Traceback" not in refused.stderr


WITHOUT_CLOZELINE = """
import sys
sys.modules["clozeline"] = None
sys.path.insert(0, sys.argv[1])
import start_server
start_server.protect()
"""


def test_a_server_without_clozeline_needs_a_password_in_its_environment(project: Project, tmp_path: Path) -> None:
    """As in its image, which has Prefect alone."""
    command = [sys.executable, "-c", WITHOUT_CLOZELINE, str(ROOT / "infra/prefect")]
    environment = project.environment | {"CLOZELINE_HOME": str(tmp_path)}
    refused = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (refused.returncode, "PREFECT_SERVER_API_AUTH_STRING" in refused.stderr) == (1, True)
    given = environment | {"PREFECT_SERVER_API_AUTH_STRING": "ada:lovelace"}
    assert subprocess.run(command, env=given, check=False).returncode == 0
