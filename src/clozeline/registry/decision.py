"""Record of a release decision, stored beside the version that it is about."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from clozeline.artifacts.export.manifest import Precision
from clozeline.artifacts.paired_figures import PairedFigures
from clozeline.registry.gates import UNIGRAM_RATIO, Gate

Outcome = Literal["promoted", "unchanged", "refused", "held", "kept"]
"""`held`: a person has to decide. `kept`: the champion stays; no action is needed."""


class Decision(BaseModel):
    """Release decision about one version, with its reasons."""

    model_config = ConfigDict(frozen=True)

    outcome: Outcome
    reason: str = ""
    """Why it is held, and what to do about it; or why the champion is kept."""
    model: str = ""
    version: str = ""
    served: Precision | None = None
    """Precision that is served by default."""
    champion_before: str | None = None
    trial: PairedFigures | None = None
    """Figures of candidate and champion on the same items; None without a champion, or if it cannot answer them."""
    old_text: PairedFigures | None = None
    """Their figures on validation text that the champion had too; None unless the candidate continues from it."""
    gates: tuple[Gate, ...] = ()
    prefect_flow_run_id: str = ""

    @property
    def is_new(self) -> bool:
        """Whether this is a new decision: false if the package is already the champion."""
        return self.outcome != "unchanged"

    @property
    def is_a_short_trial(self) -> bool:
        """Whether it is about a first encoder, refused only because its training was too short."""
        failed = {gate.name for gate in self.gates if not gate.is_passed}
        return self.outcome == "refused" and self.champion_before is None and failed == {UNIGRAM_RATIO}

    @property
    def lines(self) -> list[str]:
        """Lines of the flow's Markdown page."""
        title = f"# {self.model} version {self.version}: {self.outcome}"
        evidence = [str(figures) for figures in (self.trial, self.old_text) if figures]
        return [title, *filter(None, [self.reason]), *evidence, *(f"- {gate}" for gate in self.gates)]

    def as_record(self) -> dict[str, object]:
        return {**self.model_dump(exclude={"gates"}), "gates": [gate.as_record() for gate in self.gates]}
