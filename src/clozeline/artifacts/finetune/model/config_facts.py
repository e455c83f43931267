"""Facts of a fine-tuned model in its config.json, beside those that transformers knows."""

from dataclasses import dataclass, fields
from typing import Any, Self


@dataclass(frozen=True)
class ConfigFacts:
    """Our own keys in config.json. A missing key has the default given here."""

    reads_pairs: bool = False
    """Whether a classifier was trained on pairs of texts."""
    decision_threshold: float | None = None
    """Score above which a label is given, if a text can have several."""
    no_answer_margin: float | None = None
    """Score by which a span has to beat the empty answer."""

    @classmethod
    def of(cls, config: Any) -> Self:
        """Return the facts in a configuration of transformers."""
        facts: dict[str, Any] = {fact.name: getattr(config, fact.name, fact.default) for fact in fields(cls)}
        return cls(**facts)

    def add_to(self, config: Any) -> None:
        """Set the facts that differ from their default in `config`."""
        for fact in fields(self):
            value = getattr(self, fact.name)
            if value != fact.default:
                setattr(config, fact.name, value)
