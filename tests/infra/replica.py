"""A process of `clozeline serve --fleet` on the loopback."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Self

from tests.make.processes import answers, wait_for


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
        return answers(f"{self.url}/health/ready")

    def wait_until_ready(self) -> None:
        wait_for(lambda: self.is_ready() or self.process.poll() is not None, 240)
        assert self.is_ready(), self.log()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.process.kill()
        self.process.wait()
