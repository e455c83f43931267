"""Passwords of Prefect's servers on this machine.

A server without one obeys every local user and every page in a browser: its API sets the command that a worker runs,
and hands out the addresses of alerts.
"""

import os
import secrets
from contextlib import suppress
from pathlib import Path

from clozeline.errors import ParamsError
from clozeline.orchestration.prefect_adapter import has_server_password, server_password
from clozeline.storage.beside import held_beside
from clozeline.workspace import Workspace


def new_password() -> str:
    """Return a random password in Prefect's form, `USER:PASSWORD`."""
    return f"clozeline:{secrets.token_urlsafe(32)}"


def protection(workspace: Workspace, port: int) -> dict[str, str]:
    """Return the environment of a server that asks for the project's password; empty if Prefect's settings have one.

    The first call for a port makes the password, and closes the folder `work` to other users.

    Raises:
        ParamsError: the folder `work` belongs to another user.
    """
    return {} if has_server_password() else server_password(_kept_password(workspace, port))


def sign_in(workspace: Workspace, port: int) -> str:
    """Return what to type where Prefect's page asks for a password."""
    if has_server_password():
        return "sign in with the value of PREFECT_SERVER_API_AUTH_STRING"
    return f"sign in with the line in {workspace.prefect_password(port).relative_to(workspace.root)}"


def _kept_password(workspace: Workspace, port: int) -> str:
    _close(workspace.work)
    file = workspace.prefect_password(port)
    if not file.exists():
        with held_beside(file) as folder:
            new = folder / file.name
            new.touch(mode=0o600)
            new.write_text(f"{new_password()}\n", encoding="utf-8")
            with suppress(FileExistsError):  # another server was faster; unlike a rename, a link replaces nothing
                os.link(new, file)
    file.chmod(0o600)
    return file.read_text(encoding="utf-8").strip()


def _close(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_mode & 0o077:
        try:
            folder.chmod(0o700)
        except PermissionError as error:
            raise ParamsError(
                f"{folder} has to be closed to other users, because it holds the password of Prefect's server",
                given="a folder of another user",
                expected="a folder of yours",
                do="start the server as its owner, or set PREFECT_SERVER_API_AUTH_STRING=USER:PASSWORD",
            ) from error
