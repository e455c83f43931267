"""A process of `clozeline serve --fleet` on the loopback."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import httpx


class Replica:
    """Serves the champion of the encoder of the registry at `address`, on `port`."""

    def __init__(self, folder: Path, address: str, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        folder.mkdir(exist_ok=True)
        self._log = folder / f"{port}.log"
        command = ["serve", "models:/clozeline-encoder@champion", "--fleet", "--port", str(port)]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "clozeline", *command, "--watch", "0.5", "--threads", "1"],
                cwd=folder,
                env=os.environ | {"MLFLOW_TRACKING_URI": address},
                stdout=log,
                stderr=log,
            )

    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health/ready", trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    def wait_until_ready(self) -> None:
        until = time.monotonic() + 240
        while not self.is_ready():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < until, self.log()
            time.sleep(0.1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.process.kill()
        self.process.wait()
