"""If a server does not start, the error names its exit code or its silence; an unneeded server is ended at once."""

import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import httpx
import psutil
import pytest

from clozeline.orchestration import servers
from clozeline.orchestration.servers import Server, protection, sign_in
from clozeline.orchestration.stage_process import stage_environment
from clozeline.system.errors import ParamsError, TransientError
from clozeline.system.workspace import Workspace, use_own_password
from tests.make.processes import is_alive, wait_for

SERVER, CLIENT = "PREFECT_SERVER_API_AUTH_STRING", "PREFECT_API_AUTH_STRING"


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.delenv(CLIENT, raising=False)
    return Workspace(tmp_path)


def test_a_server_that_ends_is_reported_with_its_log(workspace: Workspace, free_port: Callable[[], int]) -> None:
    server = Server("Odd", [sys.executable, "-c", "raise SystemExit(7)"], free_port(), "/health")
    with servers.running(server, workspace) as process, pytest.raises(TransientError, match="exit code 7") as caught:
        servers.wait_until_ready(server, process, workspace)
    assert "odd-server.log" in caught.value.do


CODE = """
from pathlib import Path
from clozeline.system.workspace import Workspace, set_defaults
from clozeline.orchestration.servers import serve_until_interrupted
import sys
set_defaults(Workspace(Path.cwd()))
serve_until_interrupted(Workspace(Path.cwd()), mlflow_port=int(sys.argv[1]), prefect_port=int(sys.argv[2]),
                        say=lambda line: print(line, flush=True))
"""


def test_both_servers_run_until_interrupted_and_answer_strangers_at_the_health_path_alone(
    tmp_path: Path, free_port: Callable[[], int]
) -> None:
    command = [sys.executable, "-c", CODE, str(free_port()), str(free_port())]
    environment = {**os.environ, "PREFECT_HOME": str(tmp_path / "prefect")}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    lines = [process.stdout.readline() for _ in range(5)]
    mlflow, prefect = (address for line in lines[:2] for address in re.findall(r"http://\S+", line))
    for page in (mlflow, prefect):
        assert "<title>" in httpx.get(page, timeout=120, follow_redirects=True).text
    own = httpx.get(f"{prefect}/ui-settings", timeout=120).json()["api_url"]
    assert own == f"{prefect}/api", "Prefect's page calls its own server"
    assert httpx.get(f"{own}/health", timeout=120).text == "true"
    (file,) = re.findall(r"work/prefect-\d+\.password", lines[2])
    user, _, password = (tmp_path / file).read_text().strip().partition(":")
    assert httpx.get(f"{own}/admin/settings", timeout=120).status_code == 401
    settings = httpx.get(f"{own}/admin/settings", auth=(user, password), timeout=120).raise_for_status().json()
    assert settings["server"]["ui"]["show_promotional_content"] is False
    started = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    assert len(started) >= 2
    process.send_signal(signal.SIGINT)
    assert process.wait(240) == 0
    process.stdout.close()
    assert wait_for(lambda: not any(map(is_alive, started)), 60)


def test_only_its_owner_can_read_the_password_which_stays_and_is_the_one_of_its_port(workspace: Workspace) -> None:
    workspace.work.mkdir(mode=0o755)
    before = os.umask(0)
    try:
        password = protection(workspace, 4200)[SERVER]
    finally:
        os.umask(before)
    file = workspace.prefect_password(4200)
    assert list(workspace.work.iterdir()) == [file], "nothing is left beside it"
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (workspace.work, file)]
    assert (modes, file.read_text()) == ([0o700, 0o600], f"{password}\n")
    user, _, secret = password.partition(":")
    assert (user, len(secret) > 40) == ("clozeline", True)
    assert (file.name in sign_in(workspace, 4200), password in sign_in(workspace, 4200)) == (True, False)
    file.chmod(0o644)
    assert protection(workspace, 4200)[SERVER] == password
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert protection(workspace, 4201)[SERVER] != password


def test_a_configured_password_is_not_replaced_and_no_stage_gets_it(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    protection(workspace, 4200)
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4200/api")
    monkeypatch.setenv(CLIENT, "ada:lovelace")
    use_own_password(workspace)
    assert os.environ[CLIENT] == "ada:lovelace"
    environment = stage_environment(workspace, {})
    assert (CLIENT in environment, environment["PREFECT_API_URL"]) == (False, "http://127.0.0.1:4200/api")
    monkeypatch.setattr(servers, "has_server_password", lambda: True)
    assert protection(workspace, 4200) == {}


def test_a_work_folder_of_another_user_is_refused(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace.work.mkdir(mode=0o755)
    monkeypatch.setattr(Path, "chmod", Mock(side_effect=PermissionError))
    with pytest.raises(ParamsError, match="work"):
        protection(workspace, 4200)
    assert not workspace.prefect_password(4200).exists()


@pytest.mark.parametrize(
    ("url", "is_own"),
    [
        ("http://127.0.0.1:4200/api", True),
        ("http://[::1]:4200/api", True),
        ("http://127.0.0.1:4201/api", False),
        ("http://127.0.0.1:many/api", False),
        ("https://127.0.0.1:4200/api", False),
        ("http://127.0.0.1:4200@prefect.example/api", False),
        ("http://127.0.0.1.prefect.example:4200/api", False),
    ],
)
def test_a_client_sends_the_password_to_its_own_server_alone(
    url: str, is_own: bool, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    password = protection(workspace, 4200)[SERVER]
    for name, value in {"PREFECT_API_URL": url, "http_proxy": "http://proxy.example:3128", "no_proxy": ""}.items():
        monkeypatch.setenv(name, value)
    use_own_password(workspace)
    assert os.environ.get(CLIENT) == (password if is_own else None)
    assert ("127.0.0.1" in os.environ["no_proxy"]) == is_own, "a proxy must not read the password"
