"""Runs a stage in a process tree of its own, which is streamed, logged, and ended with the flow.

Output is read as it arrives: as lines for the log, and raw for our terminal. If our standard error is a terminal, the
stage gets a terminal too, so that its progress bars show.

The error of a failed stage has the class of its exit code; a killed one was ended by the kernel because memory ran out,
or by a person or a program. `timeout`, systemd and Docker signal a process more than once, or its process group as
well: repeated signals must not cut off the shutdown that the first one began.

Logs are kept for the newest `NUM_KEPT` runs.
"""

import codecs
import fcntl
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from clozeline.system import errors, processes
from clozeline.system.errors import ClozelineError
from clozeline.system.machine import available_bytes, out_of_memory_kills
from clozeline.system.workspace import Workspace
from clozeline.versions import reproduce
from clozeline.versions.reproduce import Outcome, outcome_of

_READ_BYTES = 65_536
_TAIL_CHARACTERS = 20_000
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
# Exit codes for SIGKILL from `subprocess` and from a shell.
_EXIT_CODES = (-signal.SIGKILL, 128 + signal.SIGKILL)
_GIB = 2**30
_ANEW = "With other settings the training starts over, with the same ones it continues from its last checkpoint"
# Advice by stage: settings in params.yaml that reduce its memory.
_SETTINGS: Mapping[str, str] = {
    "pretrain": "set `pretrain.micro_batch_tokens` lower than the tokens of a batch (the step stays the same) or"
    f" `pretrain.gradient_checkpointing: true`; `clozeline plan` shows the memory of a step. {_ANEW}",
    "evaluate": "lower `evaluate.max_length`",
    "finetune": "set `finetune.{task}.micro_batch_tokens` lower than the tokens of a batch (the step stays the same) or"
    f" lower `finetune.{{task}}.max_length`. {_ANEW}",
}
_MORE_MEMORY = "give the stage more memory, or end other programs, and run again"
_BY_HAND = "run the same command again: finished stages are kept, and a training continues from its last checkpoint"
_TOLD = re.compile(
    r"^error: (?P<problem>.+(?:\n(?!error: ).*)*?)\n"  # messages of libraries may span lines
    r"(?:  given: +(?P<given>.*(?:\n(?!error: ).*)*?)\n)?(?:  expected: +(?P<expected>.*)\n)?  do: +(?P<do>.*)$",
    re.MULTILINE,
)
_BY_EXIT_CODE: dict[int, type[ClozelineError]] = {
    kind.exit_code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, ClozelineError)
}
NUM_KEPT = 50
# Prefect's id of a flow run, which names the folder of its logs.
_RUN_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Transcript:
    """Lines of a process: `log` gets all, `hear` those that no terminal shows, `tail` holds the last ones."""

    def __init__(self, log: TextIO, hear: Callable[[str], None]) -> None:
        self._log = log
        self._hear = hear
        self.tail = ""

    def add(self, line: str, *, is_shown: bool) -> None:
        self._log.write(f"{line}\n")
        self._log.flush()
        self.tail = f"{self.tail}{line}\n"[-_TAIL_CHARACTERS:]
        if not is_shown:
            self._hear(line)


def read_all(streams: Mapping[int, bool], transcript: Transcript) -> None:
    """Read until every stream has ended.

    `streams`: file descriptor → whether the output is copied to our terminal as it arrives, including progress bars.
    """
    with selectors.DefaultSelector() as selector:
        for descriptor, is_terminal in streams.items():
            selector.register(descriptor, selectors.EVENT_READ, _Reader(descriptor, is_terminal, transcript))
        while selector.get_map():
            for key, _ in selector.select():
                if not key.data.read():
                    selector.unregister(key.fd)


class _Reader:
    """Cuts one stream into lines; of a redrawn line (a progress bar) it keeps the last drawing."""

    def __init__(self, descriptor: int, is_terminal: bool, transcript: Transcript) -> None:
        self._descriptor, self._is_terminal, self._transcript = descriptor, is_terminal, transcript
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._rest = ""

    def read(self) -> bool:
        """Read the available bytes; return False at the end of the stream."""
        content = b""
        with suppress(OSError):  # Linux ends a pseudo-terminal with EIO
            content = os.read(self._descriptor, _READ_BYTES)
        if self._is_terminal and content:
            sys.stderr.buffer.write(content)
            sys.stderr.flush()
        *lines, self._rest = (self._rest + self._decoder.decode(content)).split("\n")
        if not content and self._rest:
            lines.append(self._rest)
        for line in lines:
            drawing = line.rstrip("\r").rpartition("\r")[2]
            self._transcript.add(_ESCAPES.sub("", drawing), is_shown=self._is_terminal)
        return bool(content)


def _terminal() -> tuple[int, int] | None:
    """Return our end and the stage's end of a pseudo-terminal of the size of ours; None if standard error is none."""
    if not sys.stderr.isatty():
        return None
    ours, theirs = os.openpty()
    size = fcntl.ioctl(sys.stderr.fileno(), termios.TIOCGWINSZ, b"\0" * 8)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
    return ours, theirs


@dataclass(frozen=True)
class Ended:
    """The process of one stage, after its end."""

    name: str
    exit_code: int
    text: str  # the last characters of the output
    log: str  # path of the whole output
    # Out-of-memory kills on this machine while the stage ran; None if the kernel does not count them.
    out_of_memory_kills: int | None = None

    @property
    def outcome(self) -> Outcome | None:
        """Outcome of the stage; None if it failed."""
        return outcome_of(self.exit_code)


class StageProcesses:
    """The stage processes of one flow run; `end_all` leaves none of them."""

    def __init__(self, kept_open: Sequence[int] = ()) -> None:
        self._kept_open = tuple(kept_open)  # inherited descriptors keep the run lock until the last process ends
        self._running: set[subprocess.Popen[bytes]] = set()
        self.ending = threading.Event()  # set once the run ends

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

    def end_all(self) -> None:
        """End every process now, and any later one as soon as it starts."""
        self.ending.set()
        for process in list(self._running):
            processes.end(process)

    @contextmanager
    def _started(
        self, command: Sequence[str], root: Path, environment: Mapping[str, str]
    ) -> Iterator[tuple[subprocess.Popen[bytes], Mapping[int, bool]]]:
        output_read, output = os.pipe()
        errors_read, errors_given = _terminal() or (output_read, output)
        process = processes.start(
            command, folder=root, environment=environment, output=output, errors=errors_given, kept_open=self._kept_open
        )
        for given in {output, errors_given}:
            os.close(given)
        self._running.add(process)
        try:
            if self.ending.is_set():
                processes.end(process)
            yield process, {output_read: False} | ({errors_read: True} if errors_read != output_read else {})
        finally:
            processes.end(process)
            self._running.discard(process)
            for read in {output_read, errors_read}:
                os.close(read)


def is_killed(exit_code: int) -> bool:
    return exit_code in _EXIT_CODES


def failure_of_killed(
    name: str, log: str, out_of_memory_kills: int | None, memory_bytes: int | None = None
) -> ClozelineError:
    """Return the error for a stage that was killed.

    `name`: name of the stage, with its task. `log`: path of its whole output. `out_of_memory_kills`: as in `Ended`.
    `memory_bytes`: memory of the machine that it ran on; None: this one.
    """
    if out_of_memory_kills == 0:
        problem = f"stage `{name}` was killed (signal 9) by a person or a program: memory did not run out"
        return ClozelineError(problem, do=f"{_BY_HAND}; its output is in {log}")
    cause = "memory ran out" if out_of_memory_kills else "by hand, or because memory ran out"
    stage, _, task = name.partition("@")
    setting = _SETTINGS.get(stage)
    advice = _MORE_MEMORY if setting is None else f"{_MORE_MEMORY}; or {setting.format(task=task)}"
    gib = (memory_bytes or available_bytes()) / _GIB
    problem = f"stage `{name}` was killed (signal 9): {cause}; all programs together may use {gib:.1f} GiB"
    return ClozelineError(problem, do=f"{advice}. The output of the stage is in {log}")


def failure_of(ended: Ended) -> ClozelineError:
    """Return the error that the stage printed, with the class of its exit code; without one, an error that names the
    log."""
    matches = list(_TOLD.finditer(ended.text))
    if matches and ended.exit_code in _BY_EXIT_CODE:
        last = matches[-1]
        name = f"stage `{ended.name}`"
        problem = f"{name}: {last['problem'].removeprefix(f'{name} ')}"  # killed on another machine, it has the name
        failure = _BY_EXIT_CODE[ended.exit_code](
            problem, given=last["given"], expected=last["expected"] or "", do=last["do"]
        )
        failure.is_reported = True
        return failure
    if is_killed(ended.exit_code):
        return failure_of_killed(ended.name, ended.log, ended.out_of_memory_kills)
    last_line = next((line for line in reversed(ended.text.splitlines()) if line.strip()), "(none)")
    problem = f"stage `{ended.name}` failed with exit code {ended.exit_code}; its last line: {last_line}"
    return _BY_EXIT_CODE.get(ended.exit_code, ClozelineError)(problem, do=f"read {ended.log}")


def stage_environment(workspace: Workspace, extra: Mapping[str, str]) -> dict[str, str]:
    """Return our environment, with the tools' defaults for unset variables and with `python` as this interpreter.

    The password of Prefect's server stays here: no stage asks it anything, and some run on other machines.
    """
    ours = {name: value for name, value in os.environ.items() if name != "PREFECT_API_AUTH_STRING"}
    return {
        **workspace.defaults(),
        **ours,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYTHONUNBUFFERED": "1",  # so that lines arrive when they are written
        **extra,
    }


def forget_old_runs(logs: Path) -> None:
    """Remove the folders of all runs but the newest from `logs`. Call it while holding the run lock.

    Other files stay. A folder that cannot be removed stays too, because a run must not fail for that.
    """
    newest_first = sorted(run_folders(logs), key=lambda folder: folder.stat().st_mtime, reverse=True)
    for folder in newest_first[NUM_KEPT:]:
        shutil.rmtree(folder, ignore_errors=True)


def run_folders(logs: Path) -> list[Path]:
    """Return the folder of each run in `logs`."""
    return [folder for folder in logs.glob("*") if folder.is_dir() and _RUN_ID.fullmatch(folder.name)]
