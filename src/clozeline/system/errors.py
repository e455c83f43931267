"""Errors that Clozeline raises on purpose.

ClozelineError            a person can act on it; the message says how
├── ParamsError           a knob is unknown, misspelt, or out of range
├── DataError             the text or the labels cannot be used as they are
├── ArtifactError         a file made by a stage is missing, damaged, or belongs to something else
├── TrainingError         training cannot go on (a loss that is not finite)
├── GateError             a model is not good enough to be released
├── StorageError          the disk is full or read-only
├── ClusterError          a node of the cluster cannot do its part
├── ContractError         the data differ too much from what the last accepted run was trained on
└── TransientError        a lock, a server, or a network did not answer; the same call may work later

Each class has its own exit code, the only thing that the orchestrator sees of a failed stage. It retries only
`TransientError`.
"""

import copyreg
import re
from collections.abc import Callable
from typing import Any, ClassVar, Self

# Passwords and signatures within URLs: of user:password@host, and of signed addresses of stores.
_SECRETS = re.compile(
    r"(://[^/\s:@?#]*:)[^/\s?#]+(?=@)|(://)[^/\s:@?#]{20,}(?=@)"
    r"|([?&#](?:[\w-]*(?:password|passwd|secret|token|signature|credential|api_?key|access_?key)|sig|key|auth)=)[^&\s#]+",
    re.IGNORECASE,
)


def without_secrets(text: str) -> str:
    """Return the text with `…` in place of each password, token and signature of a URL."""
    return _SECRETS.sub(lambda found: f"{found[1] or found[2] or found[3]}…", text)


class PortableError(Exception):
    """An error that can be copied, and sent by a worker to the waiting process.

    Python rebuilds an exception by calling its class with `args`; this class restores its attributes instead.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]  # typeshed lacks it


class ClozelineError(PortableError):
    """A problem with its values, and what to do. Secrets in URLs are left out of it.

    Args:
        problem: what is wrong: what was given, and what was expected, in one sentence.
        do: what a person can do about it.
        given, expected: shown on lines of their own, for a long list or a reader that needs them apart.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, problem: str, *, do: str, given: object = None, expected: str = "") -> None:
        problem, do, expected = without_secrets(problem), without_secrets(do), without_secrets(expected)
        given = without_secrets(given) if isinstance(given, str) else given
        super().__init__(problem, given, expected, do)
        self.problem = problem
        self.given = given  # None: the problem names it
        self.expected = expected  # empty: the problem names it
        self.do = do
        self.is_reported = False  # whether the error was already printed or logged: each error is shown once

    @property
    def cause(self) -> str:
        """The problem and what was given, without the remedy."""
        return self.problem if self.given is None else without_secrets(f"{self.problem} ({self.given})")

    def with_parts(self, change: Callable[[str], str]) -> Self:
        """Return the error with `change` applied to each part that it shows."""
        given = None if self.given is None else change(str(self.given))
        return type(self)(change(self.problem), given=given, expected=change(self.expected), do=change(self.do))

    def __str__(self) -> str:
        parts = {"given": self.given, "expected": self.expected or None, "do": self.do}
        told = {f"{name}:": part for name, part in parts.items() if part is not None}
        width = max(map(len, told))
        return without_secrets("\n".join([self.problem, *(f"  {name:{width}} {part}" for name, part in told.items())]))


class ParamsError(ClozelineError):
    """A knob is unknown, misspelt, or out of range."""

    exit_code = 2


class DataError(ClozelineError):
    """The text or the labels cannot be used as they are."""

    exit_code = 3


class ArtifactError(ClozelineError):
    """A file made by a stage is missing, damaged, or belongs to something else."""

    exit_code = 4


class TrainingError(ClozelineError):
    """Training cannot go on."""

    exit_code = 5


class GateError(ClozelineError):
    """A model is not good enough to be released."""

    exit_code = 6


class StorageError(ClozelineError):
    """The disk is full or read-only."""

    exit_code = 7


class ContractError(ClozelineError):
    """The data differ too much from what the last accepted run was trained on."""

    exit_code = 8


class ClusterError(ClozelineError):
    """A node of the cluster cannot do its part."""

    exit_code = 9


class TransientError(ClozelineError):
    """Something outside the process did not answer; the same call may work later. 75 is EX_TEMPFAIL of sysexits.h."""

    exit_code = 75
