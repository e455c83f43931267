"""What all verbs share: usage errors as every error, missing extras, the project that they are called in, and signals.

The adapter of Typer's usage errors gives them the four parts of every error. A package that the base install omits is
named with the extra that brings it. On a signal a command ends gracefully, and tells the command that continues the
work.
"""

import difflib
import logging
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import requires
from pathlib import Path
from types import FrameType
from typing import Any

import typer
from typer._click.core import Context, Parameter
from typer._click.exceptions import BadParameter, NoArgsIsHelpError, NoSuchOption, UsageError
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from clozeline.cluster.store import reachable_cluster
from clozeline.params.reading import read_params
from clozeline.system import errors, processes
from clozeline.system.workspace import Workspace, set_defaults

# Key of the context's `meta`: the command as it was typed.
_TYPED = "clozeline.typed"
# Import name → distribution, where they differ by more than `_` for `-`.
_CALLED_OTHERWISE = {"sklearn": "scikit-learn"}
_STOPPED = (
    "stopped. The same command continues from here: finished stages and registered versions are kept, and a training"
    " continues from its last checkpoint"
)


class Verbs(TyperGroup):
    """The group of all verbs; an unknown verb or option, and a missing or wrong value, ends as a `ParamsError`."""

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **settings: Any) -> Context:
        typed = shlex.join([*filter(None, [info_name]), *args])
        with _usage_errors(typed):
            context = super().make_context(info_name, args, *more, **settings)
        context.meta[_TYPED] = typed
        return context

    def invoke(self, ctx: Context) -> Any:
        with _usage_errors(ctx.meta[_TYPED]):
            return super().invoke(ctx)


class Verb(TyperCommand):
    """A verb whose docstring explains its options under `Args:`, at its end."""

    def __init__(self, name: str | None, *, help: str, params: list[Parameter], **settings: Any) -> None:
        text, _, explained = help.partition("\n\nArgs:\n")
        super().__init__(name, help=text, params=params, **settings)
        entries = re.findall(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", explained, re.MULTILINE)
        helps = {option: " ".join(told.split()) for option, told in entries}
        for param in params:
            if isinstance(param, TyperOption | TyperArgument):
                param.help = helps.get(param.name or "", param.help)


@contextmanager
def _usage_errors(typed: str) -> Iterator[None]:
    """Turn a usage error into an error with four parts.

    Raises:
        ParamsError: what was typed, what was expected, and what to type.
    """
    try:
        yield
    except NoArgsIsHelpError:  # shows the help
        raise
    except UsageError as error:
        problem = error.format_message()
        for unneeded in (" (Possible options", ". Did you mean"):
            problem = problem.partition(unneeded)[0]
        for of_pydantic in ("Value error, ", "Input "):
            problem = problem.replace(of_pydantic, "")
        command = error.ctx.command_path if error.ctx else " ".join(typed.split()[:2])
        raise errors.ParamsError(
            problem[:1].lower() + problem[1:].rstrip("."),
            given=typed,
            expected=_expected(error),
            do=f"{_suggested(error)}run `{command} --help`, which shows what it takes",
        ) from error


def _expected(error: UsageError) -> str:
    """Return the parameter as the help shows it, the names to choose from, or the usage line."""
    context = error.ctx
    if context is None:
        return "a value after the option"
    if isinstance(error, BadParameter) and error.param is not None and (shown := error.param.get_help_record(context)):
        return ", ".join(" ".join(part.split()) for part in shown if part)
    if known := _known(error):
        return f"one of: {', '.join(known)}"
    return context.get_usage().removeprefix("Usage: ").strip()


def _suggested(error: UsageError) -> str:
    """Return the name that was probably meant, as the beginning of the advice."""
    given = error.option_name if isinstance(error, NoSuchOption) else error.message.partition("'")[2].partition("'")[0]
    near = difflib.get_close_matches(given, _known(error), n=1)
    return f"type `{near[0]}`, or " if near else ""


def _known(error: UsageError) -> list[str]:
    """Return the options, or the verbs, that an unknown name could have been."""
    if error.ctx is None:
        return []
    command = error.ctx.command
    if isinstance(error, NoSuchOption):
        names = [name for one in command.get_params(error.ctx) for name in (*one.opts, *one.secondary_opts)]
        return [name for name in names if name.startswith("--")]
    return command.list_commands(error.ctx) if isinstance(command, TyperGroup) else []


@contextmanager
def telling_of_extras() -> Iterator[None]:
    """Say which extra to install if a verb needs a missing package.

    Raises:
        ClozelineError: a package of one of our extras cannot be imported.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        extra = _extra_with(package)
        if extra is None:
            raise
        raise errors.ClozelineError(
            f"this command needs a package that the base install leaves out: {package}, of the extra `{extra}`",
            do=f"run `pip install 'clozeline[{extra}]'`",
        ) from error


def _extra_with(package: str) -> str | None:
    """Return the extra of this distribution that requires the package with this import name."""
    wanted = _CALLED_OTHERWISE.get(package, package.replace("_", "-"))
    asked = (
        re.match(r"""([\w.-]+).*\bextra == ["'](train|flows|ray|sweep)["']""", line)
        for line in requires("clozeline") or ()
    )
    return next((found[2] for found in asked if found and found[1].lower() == wanted), None)


def project_here() -> Workspace:
    """Return the project in the current folder, with the tools' settings in the environment.

    Call it before importing Prefect or MLflow: both read their settings at import.

    Raises:
        ParamsError: the current folder is not a project.
    """
    workspace = Workspace(Path.cwd())
    for name in ("dvc.yaml", "params.yaml"):
        if not (workspace.root / name).is_file():
            raise errors.ParamsError(
                f"this folder is not a Clozeline project: there is no {name} in {workspace.root}",
                do="change to the folder of the project (`cd`), or make one: `clozeline init FOLDER`",
            )
    set_defaults(workspace)
    for chatty in ("aiobotocore", "alembic", "botocore", "httpx", "dvc"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)  # it warns of each retry of an MLflow call
    return workspace


def sound_project_here() -> Workspace:
    """Return `project_here()` with a checked params.yaml, before a server or flow starts and reports the fault as well.

    Raises:
        ParamsError: the current folder is not a project, or its params cannot be used.
    """
    workspace = project_here()
    read_params(workspace.root / "params.yaml")
    return workspace


def project_to_run() -> Workspace:
    """Return `sound_project_here()` once the cluster answers, if there is one.

    A flow would start each stage again and again, for minutes: a scheduled one waits for a cluster that comes back.

    Raises:
        ParamsError: as `sound_project_here`; or `CLOZELINE_CLUSTER` names no cluster.
        TransientError: the cluster does not answer.
    """
    workspace = sound_project_here()
    reachable_cluster()
    return workspace


@contextmanager
def ending_orderly() -> Iterator[None]:
    """Turn SIGTERM, and SIGHUP from a closed terminal, into SystemExit: the command first stops its child processes.

    By default both kill the process at once. An ignored SIGHUP (`nohup`) stays ignored. A stopped command prints the
    command that continues it, also after Ctrl-C. Afterwards the signals are ignored: one during the shutdown of the
    interpreter would print a traceback.
    """
    signal.signal(signal.SIGTERM, _unwind)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        # Inside a flow Prefect handles SIGTERM itself, but not SIGHUP.
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
    try:
        yield
    except Exception:
        raise
    except BaseException:  # Ctrl-C, or SIGTERM turned into an exception
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        typer.echo(_STOPPED, err=True)
        raise
    finally:
        processes.ignore_termination()


def _unwind(number: int, frame: FrameType | None) -> None:
    processes.ignore_termination()
    sys.exit(128 + number)
