"""A server gets a password that other users cannot read; only the project's own server gets it from its clients."""

import os
import stat
from pathlib import Path

import pytest

from clozeline.orchestration import servers
from clozeline.orchestration.servers import new_password, protection, sign_in
from clozeline.orchestration.stage_process import stage_environment
from clozeline.system.errors import ParamsError
from clozeline.system.workspace import Workspace, use_own_password

SERVER, CLIENT = "PREFECT_SERVER_API_AUTH_STRING", "PREFECT_API_AUTH_STRING"


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.delenv(CLIENT, raising=False)
    return Workspace(tmp_path)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_only_its_owner_can_read_the_password(workspace: Workspace) -> None:
    workspace.work.mkdir(mode=0o755)
    before = os.umask(0)
    try:
        password = protection(workspace, 4200)[SERVER]
    finally:
        os.umask(before)
    file = workspace.root / "work/prefect-4200.password"
    assert (mode(workspace.work), mode(file)) == (0o700, 0o600)
    assert file.read_text() == f"{password}\n"
    user, _, secret = password.partition(":")
    assert user == "clozeline"
    assert len(secret) > 40
    assert list(workspace.work.iterdir()) == [file], "nothing is left beside it"
    assert file.name in sign_in(workspace, 4200)
    assert password not in sign_in(workspace, 4200)


def test_a_restarted_server_has_the_same_password_and_each_port_its_own(workspace: Workspace) -> None:
    first = protection(workspace, 4200)
    workspace.prefect_password(4200).chmod(0o644)
    assert protection(workspace, 4200) == first
    assert mode(workspace.prefect_password(4200)) == 0o600
    assert protection(workspace, 4201) != first


def test_a_server_that_starts_at_the_same_time_does_not_change_the_password(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    faster = []

    def slow() -> str:
        monkeypatch.undo()
        faster.append(protection(workspace, 4200))
        return new_password()

    monkeypatch.setattr(servers, "new_password", slow)
    assert [protection(workspace, 4200)] == faster


def test_a_configured_password_is_not_replaced(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "has_server_password", lambda: True)
    assert protection(workspace, 4200) == {}
    assert SERVER in sign_in(workspace, 4200)
    assert not workspace.work.exists()


def test_a_work_folder_of_another_user_is_refused(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace.work.mkdir(mode=0o755)

    def refuse(path: Path, mode: int) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "chmod", refuse)
    with pytest.raises(ParamsError, match="work"):
        protection(workspace, 4200)
    assert not workspace.prefect_password(4200).exists()


@pytest.mark.parametrize(
    ("url", "is_own"),
    [
        ("http://127.0.0.1:4200/api", True),
        ("http://localhost:4200/api", True),
        ("http://[::1]:4200/api", True),
        ("http://127.0.0.1:4201/api", False),
        ("http://127.0.0.1/api", False),
        ("http://127.0.0.1:many/api", False),
        ("https://127.0.0.1:4200/api", False),
        ("http://192.0.2.1:4200/api", False),
        ("http://prefect.example:4200/api", False),
        ("http://127.0.0.1:4200@prefect.example/api", False),
        ("http://127.0.0.1.prefect.example:4200/api", False),
        ("", False),
    ],
)
def test_a_client_sends_the_password_to_its_own_server_alone(
    url: str, is_own: bool, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    password = protection(workspace, 4200)[SERVER]
    monkeypatch.setenv("PREFECT_API_URL", url)
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "")
    use_own_password(workspace)
    assert os.environ.get(CLIENT) == (password if is_own else None)
    assert ("127.0.0.1" in os.environ["no_proxy"]) == is_own, "a proxy must not read the password"


def test_a_password_in_the_environment_wins(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    protection(workspace, 4200)
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4200/api")
    monkeypatch.setenv(CLIENT, "ada:lovelace")
    use_own_password(workspace)
    assert os.environ[CLIENT] == "ada:lovelace"


def test_no_stage_gets_the_password(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CLIENT, "ada:lovelace")
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4200/api")
    environment = stage_environment(workspace, {})
    assert CLIENT not in environment
    assert environment["PREFECT_API_URL"] == "http://127.0.0.1:4200/api"
