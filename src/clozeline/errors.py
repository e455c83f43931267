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
from typing import Any, ClassVar


class PortableError(Exception):
    """An error that can be copied, and sent by a worker to the waiting process.

    Python rebuilds an exception by calling its class with `args`; this class restores its attributes instead.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]  # typeshed lacks it


class ClozelineError(PortableError):
    """A problem in four parts: what happened, what was given, what was expected, what to do."""

    exit_code: ClassVar[int] = 1

    def __init__(self, problem: str, *, given: object, expected: str, do: str) -> None:
        super().__init__(problem, given, expected, do)
        self.problem = problem
        self.given = given
        self.expected = expected
        self.do = do
        self.is_reported = False
        """Whether the error was already printed or logged: each error is shown once."""

    def __str__(self) -> str:
        return f"{self.problem}\n  given:    {self.given}\n  expected: {self.expected}\n  do:       {self.do}"


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
