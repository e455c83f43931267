"""Runs a side in a process of its own if its packages conflict with the project's.

Each call is pickled: the function, whose module must import nothing of the project, and its arguments.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

BENCHMARKS = Path(__file__).parents[1]

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")
Ask = Callable[[Sequence[str]], Any]


class Elsewhere:
    """A Python that finds the packages of a folder before those of the project's environment."""

    def __init__(self, packages: Path) -> None:
        self._connection, there = Pipe()
        command = [sys.executable, "-m", __name__, str(there.fileno())]
        settings = {"PYTHONPATH": os.pathsep.join([str(packages), str(BENCHMARKS)])}
        self._process = subprocess.Popen(
            command, env={**os.environ, **settings}, pass_fds=(there.fileno(),), stdout=sys.stderr
        )
        there.close()

    def call(self, function: Callable[..., Answer], *arguments: Any, **named: Any) -> Answer:
        """Return the result of `function` in the other process.

        Raises:
            RuntimeError: the process ended; the cause is on stderr.
        """
        try:
            self._connection.send((function, arguments, named))
            answer: Answer = self._connection.recv()
        except (EOFError, ConnectionError) as error:
            raise RuntimeError(f"the process of the other side ended with {self._process.wait()}: see above") from error
        return answer

    def close(self) -> None:
        """Wait until the process has ended."""
        self._connection.close()
        self._process.wait()


@dataclass(frozen=True)
class There:
    """An object that the other process opens on first use."""

    process: Elsewhere
    ask: Ask

    def __call__(self, texts: Sequence[str]) -> Any:
        return self.process.call(self.ask, texts)


def measured(
    clock: Callable[Concatenate[Ask, Arguments], Answer],
    side: Ask,
    *arguments: Arguments.args,
    **named: Arguments.kwargs,
) -> Answer:
    """Return `clock`'s measurement of `side`, taken in its own process, without the transfer."""
    if isinstance(side, There):
        return side.process.call(clock, side.ask, *arguments, **named)
    return clock(side, *arguments, **named)


def _answer(connection: Connection) -> None:
    while True:
        try:
            function, arguments, named = connection.recv()
        except EOFError:
            return
        connection.send(function(*arguments, **named))


if __name__ == "__main__":
    _answer(Connection(int(sys.argv[1])))
