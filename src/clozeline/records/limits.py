"""Figure of a candidate beside that of the champion, measured on the same items: the evidence of a release decision."""

import math

from pydantic import BaseModel, ConfigDict

NATS_PER_BYTE = "nats_per_byte"
"""Figure of encoders. Lower is better; of every other figure, higher is better."""


class PairedFigures(BaseModel):
    """Figures of two packages on the same items."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    metric: str
    candidate: float
    champion: float
    low: float
    high: float
    """`low` and `high` are the ends of the 95 % interval of candidate minus champion: bootstrap over the items, with
    the answers of both to an item drawn together.
    """
    num_items: int
    """Number of documents, texts, pairs or questions."""
    items: str
    """File of the items, relative to the project."""
    items_sha256: str
    champion_bytes_per_token: float | None = None
    """Bytes of text per token of the champion; None unless the figure is `nats_per_byte`."""

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
