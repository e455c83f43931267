"""The tools that a command starts get the settings of the project; what the environment says wins."""

import os
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from urllib.error import URLError
from urllib.request import build_opener, getproxies, proxy_bypass

import pytest

from clozeline.system.workspace import Workspace, set_defaults
from tests.make.servers import Handler, answering


@pytest.fixture(autouse=True)
def environment_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*Workspace(Path()).defaults(), "http_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "to be put back")
        monkeypatch.delenv(name)


def test_a_fresh_clone_gets_a_prefect_home_and_quiet_tools_but_the_environment_wins(tmp_path, monkeypatch) -> None:
    set_defaults(Workspace(tmp_path))
    assert os.environ["PREFECT_HOME"] == str(tmp_path / "work" / "prefect")
    assert Path(os.environ["PREFECT_HOME"]).is_dir()
    assert os.environ["MLFLOW_TRACKING_URI"] == f"sqlite:///{tmp_path}/work/mlflow/mlflow.db"
    assert os.environ["DO_NOT_TRACK"] == "true"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000")
    set_defaults(Workspace(tmp_path))
    assert os.environ["MLFLOW_TRACKING_URI"] == "http://mlflow:5000"


def test_what_a_run_leaves_is_closed_to_other_users(tmp_path: Path) -> None:
    (tmp_path / "open" / "work").mkdir(mode=0o755, parents=True)
    for root in (tmp_path / "new", tmp_path / "open"):
        set_defaults(Workspace(root))
        assert (root / "work").stat().st_mode & 0o777 == 0o700


class Healthy(Handler):
    def do_GET(self) -> None:
        self.reply(204)


@pytest.fixture
def server() -> Iterator[str]:
    with answering(ThreadingHTTPServer(("127.0.0.1", 0), Healthy)) as server:
        yield f"http://127.0.0.1:{server.server_port}/health"


def test_requests_to_local_servers_bypass_a_proxy(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with pytest.raises(URLError):  # not `urlopen`, which keeps the proxies of its first call in a process
        build_opener().open(server, timeout=60)
    set_defaults(Workspace(tmp_path))
    with build_opener().open(server, timeout=60) as answer:
        assert answer.status == 204
    assert getproxies()["http"] == "http://127.0.0.1:9"
    assert not proxy_bypass("example.org")


@pytest.mark.parametrize("name", ["no_proxy", "NO_PROXY"])
def test_existing_no_proxy_entries_are_kept(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "corp.example, localhost")
    for _ in range(2):
        set_defaults(Workspace(tmp_path))
        assert os.environ["no_proxy"] == os.environ["NO_PROXY"] == "corp.example,localhost,127.0.0.1,::1"
