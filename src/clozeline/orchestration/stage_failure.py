"""The error of a failed stage, with the class of its exit code."""

import re
from typing import Final

from clozeline import errors
from clozeline.errors import ClozelineError
from clozeline.orchestration.killed_stage import failure_of_killed, is_killed
from clozeline.orchestration.stage_process import Ended

_TOLD: Final = re.compile(
    r"^error: (?P<problem>.+(?:\n(?!error: ).*)*?)\n"  # messages of libraries may span lines
    r"(?:  given: +(?P<given>.*(?:\n(?!error: ).*)*?)\n)?(?:  expected: +(?P<expected>.*)\n)?  do: +(?P<do>.*)$",
    re.MULTILINE,
)
_BY_EXIT_CODE: Final[dict[int, type[ClozelineError]]] = {
    kind.exit_code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, ClozelineError)
}


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
        return failure_of_killed(ended.name, ended.exit_code, ended.log, ended.out_of_memory_kills)
    return _BY_EXIT_CODE.get(ended.exit_code, ClozelineError)(
        f"stage `{ended.name}` failed",
        given=f"exit code {ended.exit_code}; its last line: {_last_line(ended.text)}",
        expected="exit code 0",
        do=f"read {ended.log}",
    )


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "(none)"
