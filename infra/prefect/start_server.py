"""Starts Prefect's server with a password; after an outage every run may report before an automation misses it.

The environment's PREFECT_SERVER_API_AUTH_STRING is the password. Without it the server gets one of the project in
CLOZELINE_HOME, by default the folder that it is started in; the project's commands find it.

An automation that waits for heartbeats keeps its deadline in the database. After an outage all deadlines have passed,
and the server would mark each living run as Crashed at its first look. They are put off to `_GRACE` from now: living
runs report within it, and dead ones are found after it.
"""

import asyncio
import os
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

_GRACE = timedelta(seconds=110)  # `within` of the automation, and time for the server to start


async def put_off_deadlines() -> None:
    """Move the end of every open bucket of an automation to `_GRACE` from now, if it is earlier."""
    from prefect.server.database import provide_database_interface

    database = provide_database_interface()
    later = datetime.now(UTC) + _GRACE
    bucket = database.AutomationBucket.__table__
    with suppress(DBAPIError):  # a new database has no tables yet, and no deadlines
        async with database.session_context(begin_transaction=True) as session:
            await session.execute(sa.update(bucket).where(bucket.c.end < later).values(end=later))


def make_home() -> None:
    """Create PREFECT_HOME. Prefect creates no folder above it, and without it the database cannot be opened."""
    if home := os.environ.get("PREFECT_HOME"):
        Path(home).expanduser().mkdir(parents=True, exist_ok=True)


def protect() -> None:
    """Give the server a password, unless Prefect's settings have one: its API runs commands."""
    from prefect.settings import get_current_settings

    api = get_current_settings().server.api
    if api.auth_string is not None:
        return
    try:
        from clozeline.orchestration.servers import protection, sign_in
        from clozeline.system.workspace import Workspace
    except ModuleNotFoundError:  # the image has Prefect alone
        sys.exit("error: the server needs a password: set PREFECT_SERVER_API_AUTH_STRING=USER:PASSWORD")
    project = Workspace(Path(os.environ.get("CLOZELINE_HOME") or Path.cwd()))
    told = sign_in(project, api.port)
    os.environ.update(protection(project, api.port))
    sys.stderr.write(f"Prefect asks for a password: {told}\n")


if __name__ == "__main__":
    make_home()
    protect()
    asyncio.run(put_off_deadlines())
    os.execvp("prefect", ["prefect", "server", "start"])
