"""What DVC says of a stage, read from its lines: how the stage ended, and why it failed."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from clozeline import errors
from clozeline.errors import ClozelineError, TransientError
from flows.killed_stage import failure_of_killed, is_killed

Said = Literal["executed", "restored", "unchanged"]
Outcome = Literal[Said, "failed"]

# DVC's exit code tells success only; these lines, unlike `Repo.reproduce`, tell a restored stage from an executed one.
_SAID: Final[dict[Said, str]] = {
    "executed": "Running stage '{name}':",
    "restored": "Stage '{name}' is cached - skipping run, checking out outputs",
    "unchanged": "Stage '{name}' didn't change, skipping",
}
# What DVC advises a person who called it by hand.
_ADVICE: Final = re.compile(
    r"To track the changes with git|\tgit add |To enable auto staging|\tdvc config core\.autostage|Use `dvc push`"
)
_LOCK_TROUBLE: Final = re.compile(r"Unable to acquire lock|is busy, it is being blocked by")
_EXIT_CODE: Final = re.compile(r"^ERROR: .*exited with (-?\d+)", re.MULTILINE)
_TOLD: Final = re.compile(
    r"^error: (?P<problem>.+)\n  given:    (?P<given>.*(?:\n.*)*?)\n"  # what a library said has lines of its own
    r"  expected: (?P<expected>.*)\n  do:       (?P<do>.*)$",
    re.MULTILINE,
)
_BY_EXIT_CODE: Final[dict[int, type[ClozelineError]]] = {
    kind.exit_code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, ClozelineError)
}


@dataclass(frozen=True)
class Ended:
    """A `dvc repro` of one stage, after its end."""

    name: str
    exit_code: int
    text: str
    """The end of what it and the stage wrote."""
    log: str
    """Where all of it is."""


def outcome_of(name: str, line: str) -> Said | None:
    """What `line` says about how stage `name` ends, if it is one of DVC's that do."""
    return next((outcome for outcome, said in _SAID.items() if line.startswith(said.format(name=name))), None)


def is_advice(line: str) -> bool:
    """Whether `line` is one of DVC's hints about its own commands."""
    return _ADVICE.match(line) is not None


def failure_of(ended: Ended) -> ClozelineError:
    """The error that the stage told, of the class of its exit code; or one that says where to look."""
    if _LOCK_TROUBLE.search(ended.text):
        return TransientError(
            f"another DVC command holds what stage `{ended.name}` needs",
            given=_last_line(ended.text),
            expected="one DVC command at a time in this folder",
            do="wait until it ends, then run again",
        )
    exit_code = _stage_exit_code(ended)
    told = list(_TOLD.finditer(ended.text))
    if told and exit_code in _BY_EXIT_CODE:
        last = told[-1]
        return _BY_EXIT_CODE[exit_code](
            f"stage `{ended.name}`: {last['problem']}", given=last["given"], expected=last["expected"], do=last["do"]
        )
    if is_killed(exit_code):
        return failure_of_killed(ended.name, exit_code, ended.log)
    return _BY_EXIT_CODE.get(exit_code, ClozelineError)(
        f"stage `{ended.name}` failed",
        given=f"exit code {exit_code}; its last line: {_last_line(ended.text)}",
        expected="exit code 0",
        do=f"read {ended.log}",
    )


def _stage_exit_code(ended: Ended) -> int:
    codes: Iterable[str] = _EXIT_CODE.findall(ended.text)
    return int([str(ended.exit_code), *codes][-1])


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "(none)"
