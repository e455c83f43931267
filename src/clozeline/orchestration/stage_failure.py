"""Why a stage failed: the error that it told, of the class of its exit code."""

import re
from typing import Final

from clozeline import errors
from clozeline.errors import ClozelineError
from clozeline.orchestration.killed_stage import failure_of_killed, is_killed
from clozeline.orchestration.stage_process import Ended

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


def failure_of(ended: Ended) -> ClozelineError:
    """The error that the stage told, of the class of its exit code; or one that says where to look."""
    told = list(_TOLD.finditer(ended.text))
    if told and ended.exit_code in _BY_EXIT_CODE:
        last = told[-1]
        return _BY_EXIT_CODE[ended.exit_code](
            f"stage `{ended.name}`: {last['problem']}", given=last["given"], expected=last["expected"], do=last["do"]
        )
    if is_killed(ended.exit_code):
        return failure_of_killed(ended.name, ended.exit_code, ended.log)
    return _BY_EXIT_CODE.get(ended.exit_code, ClozelineError)(
        f"stage `{ended.name}` failed",
        given=f"exit code {ended.exit_code}; its last line: {_last_line(ended.text)}",
        expected="exit code 0",
        do=f"read {ended.log}",
    )


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "(none)"
