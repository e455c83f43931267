"""Identity of the model that answers, as headers, metrics and spans report it."""

from dataclasses import dataclass
from string import punctuation
from typing import Final
from urllib.parse import quote

from clozeline.artifacts.export.manifest import Precision

VERSION: Final = "x-model-version"
"""Header with the version that answered; in a request, the version that has to answer."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of one loaded graph."""

    name: str
    """Name that clients use."""
    source: str
    """Registry URI or folder from which the model was loaded."""
    version: str
    sha256: str
    """Hash of the graph file."""
    precision: Precision
    precision_reason: str = ""
    """Why this precision was chosen."""

    @property
    def headers(self) -> dict[str, str]:
        # Percent-encoded: a folder name may hold characters that no header can carry.
        name = quote(self.name, safe=punctuation.replace("%", ""))
        return {"x-model": name, VERSION: self.version, "x-model-sha256": self.sha256}
