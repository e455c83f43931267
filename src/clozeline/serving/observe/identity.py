"""Which model it is that answers, as headers, counts and spans tell it."""

from dataclasses import dataclass
from string import punctuation
from urllib.parse import quote

from clozeline.artifacts.manifest import Precision


@dataclass(frozen=True, slots=True)
class Identity:
    """Of one loaded graph."""

    name: str
    """What clients call it."""
    source: str
    """The registry URI or folder that it was loaded from."""
    version: str
    sha256: str
    """Of the graph that answers."""
    precision: Precision
    precision_reason: str = ""
    """Why this graph, of the two."""

    @property
    def headers(self) -> dict[str, str]:
        # A folder may have a name that no header can hold.
        name = quote(self.name, safe=punctuation.replace("%", ""))
        return {"x-model": name, "x-model-version": self.version, "x-model-sha256": self.sha256}
