"""Figures with their limits, and figures of a candidate beside those of the champion: the evidence of decisions."""

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, computed_field
from pydantic.dataclasses import dataclass

from clozeline.records.record import Record

MustBe = Literal["at least", "at most", "above", "below"]
_COMPARISONS: Mapping[MustBe, Callable[[float, float], bool]] = {
    "at least": operator.ge,
    "at most": operator.le,
    "above": operator.gt,
    "below": operator.lt,
}

# Figure of encoders. Lower is better; of every other figure, higher is better.
NATS_PER_BYTE = "nats_per_byte"


@dataclass(frozen=True, config=ConfigDict(ser_json_inf_nan="strings"))
class Limit:
    """One figure and its limit, as the manifest of a package and the decision about a release keep them."""

    name: str
    given: float
    must_be: MustBe
    limit: float
    # What a reader needs beside the limit, such as the figure before; it is shown, but not written.
    note: Annotated[str, Field(exclude=True)] = field(default="", kw_only=True)

    @classmethod
    def at_least(cls, name: str, given: float, limit: float, **more: Any) -> Self:
        return cls(name, given, "at least", limit, **more)

    @classmethod
    def at_most(cls, name: str, given: float, limit: float, **more: Any) -> Self:
        return cls(name, given, "at most", limit, **more)

    @computed_field  # type: ignore[prop-decorator]  # mypy does not know decorated properties
    @property
    def is_passed(self) -> bool:
        """NaN passes no limit."""
        return _COMPARISONS[self.must_be](self.given, self.limit)

    def __str__(self) -> str:
        is_count = self.limit > 1 and self.given.is_integer()
        given = f"{self.given:,.0f}" if is_count else f"{self.given:.4f}"
        beside = f" ({self.note})" if self.note else ""
        return f"{self.name} is {given}{beside}, {self.must_be} {self.limit:g}: {'yes' if self.is_passed else 'NO'}"


class PairedFigures(Record, extra="ignore"):
    """Figures of two packages on the same items."""

    metric: str
    candidate: float
    champion: float
    low: float
    # `low` and `high` are the ends of the 95 % interval of candidate minus champion: bootstrap over the items, with the
    # answers of both to an item drawn together.
    high: float
    num_items: int  # number of documents, texts, pairs or questions
    items: str  # file of the items, relative to the project
    items_sha256: str
    # Bytes of text per token of the champion; None unless the figure is `nats_per_byte`.
    champion_bytes_per_token: float | None = None

    @property
    def difference(self) -> float:
        """Candidate minus champion."""
        return self.candidate - self.champion

    def __str__(self) -> str:
        return (
            f"{self.metric} {self.candidate:.4f}, the champion's {self.champion:.4f}: a difference of "
            f"{self.difference:+.4f} (95 %: {self.low:+.4f} to {self.high:+.4f}) over {self.num_items:,} items of "
            f"{self.items} (sha256 {self.items_sha256[:12]})"
        )

    def as_perplexity_ratio(self, difference: float) -> float:
        """Return the ratio of perplexities per token of the champion for a difference of nats per byte.

        Perplexity depends on the tokenizer: at equal model quality, longer tokens give a higher perplexity. The loss
        per byte of text does not. With equal tokenizers this is the plain ratio.
        """
        assert self.champion_bytes_per_token is not None
        return math.exp(difference * self.champion_bytes_per_token)
