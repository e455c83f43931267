"""Bring one stage up to date with DVC, in a process of its own: `python -m clozeline.versions.reproduce STAGE`.

With `--again` after the stage, it runs even if DVC finds it up to date.

The exit code is one of `EXIT_CODES`, that of the stage's own command, or that of the error printed to standard error.
DVC's own exit code reports only success or failure, and its output is not machine-readable.
"""

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from clozeline.system import errors, files, machine
from clozeline.versions.project import Repo, open_project
from clozeline.versions.remote import fetch_no_records

Outcome = Literal["executed", "restored", "unchanged"]
EXIT_CODES: Mapping[Outcome, int] = {"executed": 0, "restored": 100, "unchanged": 101}
AGAIN = "--again"
# Variable that is set if outputs may be fetched from the project's remote.
RESTORE_FROM_REMOTE = "CLOZELINE_RESTORE_FROM_REMOTE"
_FAILED = 1
_KILLED = 137

# DVC runs a command as `$SHELL -c COMMAND`. This shell records that it ran, and then the exit code of the command. If
# it is killed, its first record (137) remains. On SIGTERM it waits for its command, as DVC waits for it.
_SHELL = """#!/bin/sh
trap : TERM
echo {killed} > {file}
SHELL=/bin/sh /bin/sh "$@"
code=$?
echo $code > {file}
exit $code
"""


class _Shell:
    """The recording shell that DVC runs instead of the user's."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "shell"
        self._file = folder / "exit_code"
        self.path.write_text(_SHELL.format(killed=_KILLED, file=shlex.quote(str(self._file))), encoding="utf-8")
        self.path.chmod(0o700)

    @property
    def exit_code(self) -> int | None:
        """Exit code of the last command of the stage; None if it ran no command."""
        return int(self._file.read_text(encoding="utf-8")) if self._file.exists() else None


def outcome_of(exit_code: int) -> Outcome | None:
    """Return the outcome behind an exit code of this program; None if it failed."""
    return next((outcome for outcome, code in EXIT_CODES.items() if code == exit_code), None)


def reproduce(name: str, *, again: bool = False) -> int:
    """Bring stage `name` of the project in the current folder up to date; return the exit code for the outcome.

    It waits for DVC's locks. Otherwise a stage loses its work if another command holds a lock when it ends.
    """
    from dvc.exceptions import DvcException
    from dvc.stage import PipelineStage

    with open_project(Path.cwd(), waits_for_lock=True) as repo, tempfile.TemporaryDirectory(dir=repo.tmp_dir) as folder:
        repo.scm_context.quiet = True  # no advice on git's commands
        shell = _Shell(Path(folder).resolve())
        os.environ["SHELL"] = str(shell.path)
        was_missing = any(not out.exists for stage in repo.stage.collect(name) for out in stage.outs)
        try:
            # DVC then also looks for outputs at the remote, and calls a stage that it only fetched up to date.
            is_fetching = RESTORE_FROM_REMOTE in os.environ
            if is_fetching:
                fetch_no_records(repo)  # `remote.fetch_runs` did, once for all stages
                if was_missing:
                    _fetch_unchanged(repo, name)
            with _dvc_lock_replaced([stage.name for stage in repo.index.stages if isinstance(stage, PipelineStage)]):
                done = repo.reproduce(name, single_item=True, force=again, pull=is_fetching)
            was_out_of_date = bool(done) or was_missing
        except DvcException as error:
            if code := shell.exit_code:
                return _FAILED if outcome_of(code) else code  # its own code may mean an outcome here
            told = _error_of(name, error)
            sys.stderr.write(f"error: {told}\n")
            return told.exit_code
        if not was_out_of_date:
            return EXIT_CODES["unchanged"]
        return EXIT_CODES["restored" if shell.exit_code is None else "executed"]


def _fetch_unchanged(repo: Repo, name: str) -> None:
    """Fetch all outputs of a stage whose inputs are those of dvc.lock.

    DVC's own pull leaves out metrics and plots with `cache: false`. If they were not committed to git, only the run
    cache has them.
    """
    from dvc.repo import lock_repo
    from dvc.stage.cache import RunCacheNotFoundError

    with lock_repo(repo), suppress(RunCacheNotFoundError):
        for stage in repo.stage.collect(name):
            repo.stage_cache.restore(stage, run_cache=False, pull=True)


@contextmanager
def _dvc_lock_replaced(names: Sequence[str]) -> Iterator[None]:
    """Let DVC write dvc.lock beside the old one and rename it, with the stages in the order of `names`.

    DVC itself rewrites it in place: a process killed in that moment would leave a part of it, which may even be valid
    YAML with fewer stages. And it appends: the bytes would tell which stage had failed or was restored before.
    """
    from dvc import dvcfile

    rewriting = dvcfile.modify_yaml

    @contextmanager
    def replacing(path: str, fs: object = None) -> Iterator[object]:
        file = Path(path).resolve()
        with files.replacing_file(file) as beside:
            if file.exists():
                shutil.copyfile(file, beside)
            with rewriting(beside, fs=fs) as content:
                yield content
                stages = content.get("stages", {})
                others = [name for name in stages if name not in names]
                for name in [*(name for name in names if name in stages), *others]:
                    stages[name] = stages.pop(name)

    dvcfile.modify_yaml = replacing
    try:
        yield
    finally:
        dvcfile.modify_yaml = rewriting


def _error_of(name: str, error: BaseException) -> errors.ClozelineError:
    from dvc.lock import LockError

    causes = [error]
    while causes[-1].__cause__:
        causes.append(causes[-1].__cause__)
    if any(isinstance(cause, LockError) for cause in causes):
        return errors.TransientError(
            f"another DVC command holds a lock that stage `{name}` needs: {causes[-1]}",
            do="wait until it ends, then run again",
        )
    return errors.ClozelineError(
        f"DVC could not bring stage `{name}` up to date: {': '.join(map(str, causes))}",
        do=f"correct the fault that DVC names; `dvc repro {name}` shows it too",
    )


if __name__ == "__main__":
    machine.collect_rarely()
    sys.exit(reproduce(sys.argv[1], again=AGAIN in sys.argv[2:]))
