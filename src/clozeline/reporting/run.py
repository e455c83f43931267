"""What a report is made of: the files of a project, and what the tools know of them."""

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
    """One state of a project. What is asked of a server is asked when it is needed, and may raise `ClozelineError`."""

    files: RunFiles
    tasks: Sequence[str]
    """Of params.yaml."""
    packages: Mapping[str, str]
    """Name under `dist/` → folder under `models/`."""
    released: Callable[[str], "Released | None"]
    """What became of a package."""
    past: Callable[[], "PastRuns"]
    """The runs behind dvc.lock."""
    machine: Mapping[str, str]
    """The one that the report is made on."""
    built_at: datetime


Part = Callable[[], Markup | None]
"""A piece of a section. It raises `ClozelineError` where its files are missing, and is None where there is nothing."""


@dataclass(frozen=True)
class Section:
    """A chapter of the report."""

    id: str
    title: str
    lead: str
    """What it is about, and how to read it."""
    parts: Callable[[Run], Iterable[Part]]
