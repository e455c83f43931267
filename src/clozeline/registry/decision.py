"""Record of a release decision, stored beside the version that it is about."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from clozeline.artifacts.export.manifest import Precision
from clozeline.registry.gates import Gate

Outcome = Literal["promoted", "unchanged", "refused", "held"]


class Decision(BaseModel):
    """Release decision about one version, with its reasons."""

    model_config = ConfigDict(frozen=True, extra="ignore")  # records of earlier versions may have more

    outcome: Outcome
    reason: str = ""
    """Why it is held, and what to do about it."""
    model: str = ""
    version: str = ""
    served: Precision | None = None
    """Precision that is served by default."""
    champion_before: str | None = None
    not_compared_with_champion: tuple[str, ...] = ()
    """Differences of the measurement, because of which its figures were not compared with the champion's."""
    gates: tuple[Gate, ...] = ()
    prefect_flow_run_id: str = ""

    @property
    def is_new(self) -> bool:
        """Whether this is a new decision: false if the package is already the champion."""
        return self.outcome != "unchanged"

    @property
    def lines(self) -> list[str]:
        """Lines of the flow's Markdown page."""
        title = f"# {self.model} version {self.version}: {self.outcome}"
        return [title, *filter(None, [self.reason]), *(f"- {gate}" for gate in self.gates)]

    def as_record(self) -> dict[str, object]:
        return {**self.model_dump(exclude={"gates"}), "gates": [gate.as_record() for gate in self.gates]}
