"""Progress of a long job: a bar with ETA in a terminal or a notebook, a plain line now and then elsewhere."""

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from html import escape
from importlib import import_module
from types import TracebackType
from typing import Any, Self, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Item = TypeVar("Item")
_LOG = logging.getLogger(__name__)
# Least time between two states of a bar that a notebook is sent.
_NOTEBOOK_SECONDS = 0.2


class ProgressBar:
    """Counts `total` units of work; `note` is shown next to the count (a loss, a speed).

    Bars go to standard error, so that standard output stays clean for pipes.
    """

    def __init__(self, description: str, total: int, *, plain_every_seconds: float = 10.0) -> None:
        self._description = description
        self._total = total
        self._done = 0
        self._done_at_start = 0
        self._started = time.monotonic()
        self._last_line = self._started
        self._plain_every_seconds = plain_every_seconds
        self._shown = _NotebookBar() if _is_in_notebook() else None
        self._bar = _terminal_bar() if sys.stderr.isatty() and self._shown is None else None
        if self._bar:
            self._task = self._bar.add_task(description, total=total, note="")

    def __enter__(self) -> Self:
        if self._bar:
            known = (it for it in logging.getLogger().handlers if isinstance(it, logging.StreamHandler))
            self._redirected = [(handler, sys.stderr) for handler in known if handler.stream is sys.stderr]
            self._bar.start()
            # The bar replaces sys.stderr. Log output has to go through the bar as well, or it would overwrite the bar's
            # line.
            for handler, _ in self._redirected:
                handler.setStream(sys.stderr)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            for handler, stream in self._redirected:
                handler.setStream(stream)
            self._bar.stop()

    def start_at(self, done: int) -> None:
        """Start the count at `done`; these units do not count towards the speed."""
        self._done = self._done_at_start = done
        self._started = time.monotonic()
        if self._bar:
            self._bar.reset(self._task, completed=done)

    @property
    def done(self) -> int:
        return self._done

    def advance(self, units: int = 1, note: str = "") -> None:
        self._done += units
        if self._bar:
            self._bar.update(self._task, completed=self._done, note=note)
        elif self._shown:
            self._shown.show(self._done, self._total, self._in_words(note))
        elif time.monotonic() - self._last_line >= self._plain_every_seconds:
            self._last_line = time.monotonic()
            _LOG.info("%s", self._in_words(note))

    def _in_words(self, note: str) -> str:
        elapsed = time.monotonic() - self._started
        remaining = elapsed / max(self._done - self._done_at_start, 1) * (self._total - self._done)
        return (
            f"{self._description}: {self._done}/{self._total} ({100 * self._done / max(self._total, 1):.0f} %),"
            f" {elapsed:.0f} s elapsed, ETA {max(remaining, 0):.0f} s{f', {note}' if note else ''}"
        )


class _NotebookBar:
    """A bar below a notebook's cell. It needs no widgets, and a saved notebook keeps it."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._shown_at = 0.0

    def show(self, done: int, total: int, words: str) -> None:
        if self._handle and done < total and time.monotonic() - self._shown_at < _NOTEBOOK_SECONDS:
            return
        self._shown_at = time.monotonic()
        html = f'<progress value="{done}" max="{total}"></progress> {escape(words)}'
        shown = {"text/plain": words, "text/html": html}
        if self._handle is None:
            display = import_module("IPython.display").display  # a kernel has it; we do not install it
            self._handle = display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)


def _is_in_notebook() -> bool:
    """Whether this process is the kernel of a notebook; IPython in a terminal is none."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def track(items: Iterable[Item], description: str, total: int, note: Callable[[], str] = lambda: "") -> Iterator[Item]:
    """Yield `items` and show how many of `total` are done, with `note()` beside the count."""
    with ProgressBar(description, total) as bar:
        for item in items:
            yield item
            bar.advance(note=note())


def _terminal_bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=Console(stderr=True),
    )
