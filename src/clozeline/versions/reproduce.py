"""One stage brought up to date by DVC, in a process of its own: `python -m clozeline.versions.reproduce STAGE`.

The exit code says how it ended: it is one of `EXIT_CODES`, or that of the stage's own command, or that of the error
which stands on standard error. DVC's own exit code tells success only, and its lines are made for people.
"""

import os
import shlex
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

from clozeline.errors import ClozelineError, TransientError

Outcome = Literal["executed", "restored", "unchanged"]
EXIT_CODES: Final[Mapping[Outcome, int]] = MappingProxyType({"executed": 0, "restored": 100, "unchanged": 101})
_FAILED: Final = 1
_KILLED: Final = 137

# DVC runs a command as `$SHELL -c COMMAND`. This shell writes down that it ran, and how the command ended; killed, it
# leaves what it wrote first. It waits for its command when both are told to end, as DVC waits for it.
_SHELL: Final = """#!/bin/sh
trap : TERM
echo {killed} > {file}
SHELL=/bin/sh /bin/sh "$@"
code=$?
echo $code > {file}
exit $code
"""


class _Shell:
    """What DVC takes for the user's shell."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "shell"
        self._file = folder / "exit_code"
        self.path.write_text(_SHELL.format(killed=_KILLED, file=shlex.quote(str(self._file))), encoding="utf-8")
        self.path.chmod(0o700)

    @property
    def exit_code(self) -> int | None:
        """Of the last command that it ran; None: it ran none."""
        return int(self._file.read_text(encoding="utf-8")) if self._file.exists() else None


def outcome_of(exit_code: int) -> Outcome | None:
    """How a process of this file ended; None: it failed."""
    return next((outcome for outcome, code in EXIT_CODES.items() if code == exit_code), None)


def reproduce(name: str) -> int:
    """Bring stage `name` of the project in this folder up to date, and return the exit code that says how.

    DVC's locks are waited for: without that, the work of a stage is lost where another command holds one at its end.
    """
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    with Repo(_wait_for_lock=True) as repo, tempfile.TemporaryDirectory(dir=repo.tmp_dir) as folder:
        repo.scm_context.quiet = True  # no advice on git's commands
        shell = _Shell(Path(folder).resolve())
        os.environ["SHELL"] = str(shell.path)
        try:
            was_out_of_date = bool(repo.reproduce(name, single_item=True))
        except DvcException as error:
            return _exit_code_of(shell.exit_code) if shell.exit_code else _tell(_error_of(name, error))
        if not was_out_of_date:
            return EXIT_CODES["unchanged"]
        return EXIT_CODES["restored" if shell.exit_code is None else "executed"]


def _exit_code_of(command: int) -> int:
    """That of the stage's command, unless it has a meaning of its own here."""
    return _FAILED if outcome_of(command) else command


def _error_of(name: str, error: BaseException) -> ClozelineError:
    from dvc.lock import LockError

    said = [error]
    while said[-1].__cause__:
        said.append(said[-1].__cause__)
    if any(isinstance(cause, LockError) for cause in said):
        return TransientError(
            f"another DVC command holds what stage `{name}` needs",
            given=str(said[-1]),
            expected="one DVC command at a time in this folder",
            do="wait until it ends, then run again",
        )
    return ClozelineError(
        f"DVC could not bring stage `{name}` up to date",
        given=": ".join(map(str, said)),
        expected="a stage that DVC can run, and every output that dvc.yaml names made by it",
        do=f"mend what it names; `dvc repro {name}` tells it as well",
    )


def _tell(error: ClozelineError) -> int:
    sys.stderr.write(f"error: {error}\n")
    return error.exit_code


if __name__ == "__main__":
    sys.exit(reproduce(sys.argv[1]))
