"""Trials of a release: the candidate's package against the champion's, on the items that the stages made."""

from dataclasses import dataclass

from clozeline.artifacts.lock import Lock
from clozeline.artifacts.paired_figures import PairedFigures
from clozeline.errors import ArtifactError
from clozeline.params import Params
from clozeline.registry import fetch
from clozeline.registry.versions import Registered
from clozeline.trial.trial import IncomparableError, TrialItems, try_both
from clozeline.workspace import Workspace

_VALIDATION = ("evaluate", "validation_text")
"""Stage and argument of its command that name the validation text."""


@dataclass(frozen=True)
class Tried:
    """Result of a trial."""

    figures: PairedFigures | None = None
    why_not: str = ""
    """Why there are no figures, although there is a champion."""


@dataclass(frozen=True)
class Trials:
    """Trials of one package of the workspace."""

    workspace: Workspace
    params: Params
    package: str
    accept_held: bool = False
    """Whether a person has approved versions that are held."""

    def against(self, champion: Registered) -> Tried:
        """Measure the package and `champion` on the same items."""
        try:
            theirs = fetch(f"models:/{champion.name}/{champion.version}", self.workspace).folder
            return Tried(try_both(self.workspace.root / "dist" / self.package, theirs, self._items()))
        except (IncomparableError, ArtifactError) as error:
            return Tried(why_not=f"{error.problem} ({error.given})")

    def _items(self) -> TrialItems:
        root = self.workspace.root
        stages = Lock.read(root / "dvc.lock").stages
        stage, argument = _VALIDATION
        return TrialItems(
            root=root,
            validation_text=stages[stage].argument(argument) if stage in stages else "",
            model=f"models/{self.params.export.models[self.package]}",
            most=self.params.release.max_trial_items,
            longest=self.params.evaluate.max_length,
        )
