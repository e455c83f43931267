"""Starts, checks and stops services in the order of compose.yaml."""

import json
import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.infra.stack.sandbox import Sandbox
from tests.make.processes import run_to_end, wait_for

# Services that are not built on Python: Debian's PostgreSQL and moto run in their place.
STAND_INS = {"postgres", "store"}
_LONGEST_SECONDS = 300.0


@dataclass
class Running:
    process: subprocess.Popen[bytes]
    pid: int  # process of the service itself, which `docker compose stop` signals


@dataclass
class Services:
    """Services that run in sandboxes; the output of each is in `sandbox.state/SERVICE.log`."""

    sandbox: Sandbox
    running: dict[str, Running] = field(default_factory=dict)

    def up(self, profile: str | None = None) -> None:
        """Start each service of the profile that does not run, after those that it depends on; run the jobs again."""
        compose = self.sandbox.compose
        for service in compose.in_order(profile):
            if service in STAND_INS or service in self.running:
                continue
            if compose.is_job(service):
                self.run(service)
            else:
                self._start(service)
                self._wait_until_healthy(service)

    def run(self, service: str, command: list[str] | None = None) -> str:
        """Run the service, or `command` in a container of it, to its end; return its output."""
        return run_to_end(self.sandbox.command(service, command), self.sandbox.state, self.sandbox.environment(service))

    def down(self) -> dict[str, int]:
        """Stop every service by SIGTERM, the last one first; return their exit codes. The logs are kept."""
        codes = {}
        for service in reversed(list(self.running)):
            running = self.running.pop(service)
            with suppress(ProcessLookupError):
                os.kill(running.pid, signal.SIGTERM)
            codes[service] = running.process.wait(_LONGEST_SECONDS)
        return codes

    def log(self, service: str) -> Path:
        return self.sandbox.state / f"{service}.log"

    def _start(self, service: str) -> None:
        """Start the service. bubblewrap waits outside its sandbox and forwards no signal: it is asked for the pid."""
        reads, writes = os.pipe()
        program, *options = self.sandbox.command(service)
        given = {"env": self.sandbox.environment(service), "cwd": self.sandbox.state, "pass_fds": [writes]}
        with self.log(service).open("ab") as log:
            process = subprocess.Popen([program, "--info-fd", str(writes), *options], stdout=log, stderr=log, **given)
        os.close(writes)
        with os.fdopen(reads) as told:
            self.running[service] = Running(process, json.load(told)["child-pid"])

    def _wait_until_healthy(self, service: str) -> None:
        check = self.sandbox.command(service, self.sandbox.compose.health_check(service))
        given = {"env": self.sandbox.environment(service), "cwd": self.sandbox.state}
        process = self.running[service].process

        def is_healthy() -> bool:
            return subprocess.run(check, **given, capture_output=True, check=False).returncode == 0

        wait_for(lambda: is_healthy() or process.poll() is not None, _LONGEST_SECONDS, every_seconds=0.5)
        assert is_healthy(), f"{service}, exit code {process.poll()}:\n{self.log(service).read_text()[-4000:]}"
