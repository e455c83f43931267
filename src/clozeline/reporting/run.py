"""Inputs of a report: the files of a project and what MLflow knows about them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from markupsafe import Markup

from clozeline.reporting.files import RunFiles

if TYPE_CHECKING:
    from clozeline.registry.history import Released
    from clozeline.tracking.past_runs import PastRuns


@dataclass(frozen=True)
class Run:
    """One state of a project. `released` and `past` query a server on demand and may raise `ClozelineError`."""

    files: RunFiles
    tasks: Sequence[str]
    """Names of the tasks in params.yaml."""
    packages: Mapping[str, str | None]
    """Name under `dist/` → folder under `models/`; None: a published model."""
    released: Callable[[str], "Released | None"]
    """Function that returns the release of a package; None if it was never registered."""
    past: Callable[[], "PastRuns"]
    """Function that returns the runs behind dvc.lock."""
    machine: Mapping[str, str]
    """Facts about the machine that the report is made on."""
    built_at: datetime
    is_causal: bool = False
    """Whether the encoder predicts the next token of a text instead of hidden ones."""


Part = Callable[[], Markup | None]
"""Function that returns a piece of a section, or None if it is empty; raises `ClozelineError` if files are missing."""


@dataclass(frozen=True)
class Fold:
    """Pieces behind a summary line, unfolded if one of their files is missing."""

    summary: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class Chapter:
    """A chapter of a page."""

    id: str
    title: str
    lead: str
    """Introduction: its subject and how to read it."""


@dataclass(frozen=True)
class Section(Chapter):
    """A chapter of the report."""

    parts: Callable[[Run], Iterable[Part | Fold]]
    is_open: bool = False
    """Whether the chapter starts unfolded."""
