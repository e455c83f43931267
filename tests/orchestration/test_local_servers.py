"""The pages of Prefect and MLflow come up over the project's own databases, and Ctrl-C leaves nothing behind."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from urllib.request import urlopen

import httpx
import psutil
import pytest

from clozeline.orchestration import servers
from clozeline.system.errors import TransientError
from clozeline.system.workspace import Workspace
from tests.make.processes import is_alive, wait_for
from tests.make.session import PutDatabase

CODE = """
from pathlib import Path
from clozeline.system.workspace import Workspace, set_defaults
from clozeline.orchestration.servers import serve_until_interrupted
import sys
set_defaults(Workspace(Path.cwd()))
serve_until_interrupted(Workspace(Path.cwd()), mlflow_port=int(sys.argv[1]), prefect_port=int(sys.argv[2]),
                        say=lambda line: print(line, flush=True))
"""


def test_both_servers_run_until_interrupted(
    tmp_path: Path, free_port: Callable[[], int], put_prefect_database: PutDatabase
) -> None:
    put_prefect_database(tmp_path / "prefect" / "prefect.db")
    environment = {**os.environ, "PREFECT_HOME": str(tmp_path / "prefect")}
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, str(free_port()), str(free_port())],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    lines = [process.stdout.readline() for _ in range(5)]
    pages = [address for line in lines[:2] for address in re.findall(r"http://\S+", line)]
    assert len(pages) == 2
    for page in pages:
        with urlopen(page, timeout=120) as answer:
            assert b"<title>" in answer.read()
    with urlopen(f"{pages[1]}/ui-settings", timeout=120) as answer:
        assert json.load(answer)["api_url"] == f"{pages[1]}/api", "Prefect's page calls its own server"
    (file,) = re.findall(r"work/prefect-\d+\.password", lines[2])
    user, _, password = (tmp_path / file).read_text().strip().partition(":")
    assert httpx.get(f"{pages[1]}/api/admin/settings", timeout=120).status_code == 401
    settings = httpx.get(f"{pages[1]}/api/admin/settings", auth=(user, password), timeout=120).raise_for_status().json()
    assert settings["server"]["ui"]["show_promotional_content"] is False
    started = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    assert len(started) >= 2
    process.send_signal(signal.SIGINT)
    assert process.wait(240) == 0
    process.stdout.close()
    assert wait_for(lambda: not any(map(is_alive, started)), 60)


class Ended:
    def poll(self) -> int:
        return 3


def test_a_server_that_ends_by_itself_is_reported_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_port: Callable[[], int]
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(servers, "prepare", lambda address: None)
    monkeypatch.setattr(servers, "running", lambda server, workspace: nullcontext(Ended()))
    monkeypatch.setattr(servers, "wait_until_ready", lambda server, process, workspace: None)
    with pytest.raises(TransientError, match="MLflow ended") as caught:
        servers.serve_until_interrupted(
            Workspace(tmp_path), mlflow_port=free_port(), prefect_port=free_port(), say=lambda line: None
        )
    assert caught.value.given == "exit code 3"
    assert "mlflow-server.log" in caught.value.do
