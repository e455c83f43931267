"""Starts Prefect's server; after an outage every run gets time to report before an automation misses it.

An automation that waits for heartbeats keeps its deadline in the database. After an outage all deadlines have passed,
and the server would mark each living run as Crashed at its first look. They are put off to `_GRACE` from now: living
runs report within it, and dead ones are found after it.
"""

import asyncio
import os
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from prefect.server.database import provide_database_interface
from sqlalchemy.exc import DBAPIError

_GRACE = timedelta(seconds=110)  # `within` of the automation, and time for the server to start


async def put_off_deadlines() -> None:
    """Move the end of every open bucket of an automation to `_GRACE` from now, if it is earlier."""
    database = provide_database_interface()
    later = datetime.now(UTC) + _GRACE
    bucket = database.AutomationBucket.__table__
    with suppress(DBAPIError):  # a new database has no tables yet, and no deadlines
        async with database.session_context(begin_transaction=True) as session:
            await session.execute(sa.update(bucket).where(bucket.c.end < later).values(end=later))


if __name__ == "__main__":
    asyncio.run(put_off_deadlines())
    os.execvp("prefect", ["prefect", "server", "start"])
