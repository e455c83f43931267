"""Usage errors in the four parts of every error. The adapter of Typer's usage errors."""

import difflib
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from typer._click.core import Context
from typer._click.exceptions import BadParameter, NoArgsIsHelpError, NoSuchOption, UsageError
from typer.core import TyperGroup

from clozeline.errors import ParamsError

_TYPED: Final = "clozeline.typed"
"""Key of the context's `meta`: the command as it was typed."""


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
        raise ParamsError(
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
