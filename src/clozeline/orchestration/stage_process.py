"""Runs a stage in a process tree of its own, which is streamed, logged, and ended with the flow."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from clozeline.machine import supervised
from clozeline.machine.memory import out_of_memory_kills
from clozeline.orchestration.streams import Stream, Transcript, read_all
from clozeline.orchestration.terminal import terminal_or
from clozeline.versions import reproduce
from clozeline.versions.reproduce import Outcome, outcome_of


@dataclass(frozen=True)
class Ended:
    """The process of one stage, after its end."""

    name: str
    exit_code: int
    text: str
    """The last characters of the output."""
    log: str
    """Path of the whole output."""
    out_of_memory_kills: int | None = None
    """Out-of-memory kills on this machine while the stage ran; None if the kernel does not count them."""

    @property
    def outcome(self) -> Outcome | None:
        """Outcome of the stage; None if it failed."""
        return outcome_of(self.exit_code)


class StageProcesses:
    """The stage processes of one flow run; `end_all` leaves none of them."""

    def __init__(self, kept_open: Sequence[int] = ()) -> None:
        self._kept_open = tuple(kept_open)  # inherited descriptors keep the run lock until the last process ends
        self._running: set[subprocess.Popen[bytes]] = set()
        self._is_ending = threading.Event()

    def reproduce(
        self,
        name: str,
        *,
        root: Path,
        environment: Mapping[str, str],
        log: Path,
        hear: Callable[[str], None],
        again: bool = False,
    ) -> Ended:
        """Bring stage `name` up to date, or run it `again`.

        `log` gets every line, `hear` only those that no terminal shows.
        """
        command = [sys.executable, "-m", reproduce.__name__, name, *([reproduce.AGAIN] if again else [])]
        log.parent.mkdir(parents=True, exist_ok=True)
        kills_before = out_of_memory_kills()
        with log.open("a", encoding="utf-8") as log_file:
            transcript = Transcript(log_file, hear)
            with self._started(command, root, environment) as (process, streams):
                read_all(streams, transcript)
                exit_code = process.wait()
        kills = out_of_memory_kills()
        meanwhile = None if kills is None or kills_before is None else kills - kills_before
        return Ended(name, exit_code, transcript.tail, str(log), meanwhile)

    @property
    def are_ending(self) -> bool:
        return self._is_ending.is_set()

    def are_ending_within(self, seconds: float) -> bool:
        """Wait for the end of the run, but no longer; return whether it came."""
        return self._is_ending.wait(seconds)

    def end_all(self) -> None:
        """End every process now, and any later one as soon as it starts."""
        self._is_ending.set()
        for process in list(self._running):
            supervised.end(process)

    @contextlib.contextmanager
    def _started(
        self, command: Sequence[str], root: Path, environment: Mapping[str, str]
    ) -> Iterator[tuple[subprocess.Popen[bytes], list[Stream]]]:
        output_read, output_given = os.pipe()
        errors = terminal_or(output_given)
        process = supervised.start(
            command,
            folder=root,
            environment=environment,
            output=output_given,
            errors=errors.given,
            kept_open=self._kept_open,
        )
        os.close(output_given)
        errors.close_given()
        self._running.add(process)
        try:
            if self._is_ending.is_set():
                supervised.end(process)
            shown = [] if errors.read is None else [Stream(errors.read, is_terminal=True)]
            yield process, [Stream(output_read, is_terminal=False), *shown]
        finally:
            supervised.end(process)
            self._running.discard(process)
            os.close(output_read)
            errors.close_read()
