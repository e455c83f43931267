"""Debian's PostgreSQL as a server of a test's own."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Postgres:
    binaries: Path
    data: Path
    port: int
    # User that runs PostgreSQL, which refuses root; None: the user of this process, which is not root.
    user: str | None

    @property
    def database(self) -> str:
        """Address of the database `postgres`, as SQLAlchemy writes it."""
        return f"postgresql+psycopg://postgres@/postgres?host={self.data}&port={self.port}"

    def run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self.binaries / program), *arguments],
            user=self.user,
            cwd=self.data,
            env={"LC_ALL": "C.UTF-8", "PATH": os.environ["PATH"]},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            check=True,
        )


def postgres_binaries() -> Path:
    versions = Path("/usr/lib/postgresql").glob("*/bin/postgres")
    if found := sorted(versions, key=lambda path: int(path.parts[-3])):
        return found[-1].parent
    if on_path := shutil.which("postgres"):
        return Path(on_path).parent
    raise AssertionError("PostgreSQL is not installed: `make system`, or `apt-get install postgresql`")


@contextmanager
def running_postgres(port: int) -> Iterator[Postgres]:
    """Run a new server during the block; its superuser `postgres` enters by the socket in its folder."""
    # Not under tmp_path: root owns the folders above it, and PostgreSQL's user may not enter them.
    with tempfile.TemporaryDirectory(prefix="postgres-", dir="/tmp") as folder:
        data = Path(folder)
        user = "nobody" if os.geteuid() == 0 else None
        if user is not None:
            os.chown(data, pwd.getpwnam(user).pw_uid, -1)
        server = Postgres(postgres_binaries(), data, port, user)
        server.run("initdb", "--pgdata", ".", "--username", "postgres", "--auth", "trust", "--no-sync")
        # Connections by TCP need the password, as in the container.
        (data / "pg_hba.conf").write_text("local all postgres trust\nhost all all 127.0.0.1/32 scram-sha-256\n")
        options = f"-p {server.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={data} -c fsync=off"
        server.run("pg_ctl", "start", "--pgdata", ".", "--wait", "--log", "log.txt", "--options", options)
        try:
            yield server
        finally:
            server.run("pg_ctl", "stop", "--pgdata", ".", "--mode", "immediate")
