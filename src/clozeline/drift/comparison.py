"""Measures of the shift between two samples of traffic."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from clozeline.artifacts.stability import stability_index
from clozeline.drift.traffic import Traffic
from clozeline.errors import ParamsError


@dataclass(frozen=True)
class Limits:
    """Limits beyond which traffic counts as drifted."""

    min_texts: int = 1_000
    """Smallest number of texts on each side. By chance alone the index is about 12 buckets * 2 / `min_texts`."""
    max_index: float = 0.2
    """Largest population stability index; 0.1 is usually called a small shift and 0.25 a large one."""
    max_unknown_increase: float = 0.01
    """Largest increase of the share of unknown tokens, 0-1."""
    min_scored: int = 200
    """Smallest number of answers on each side that feedback has scored."""
    max_wrong_increase: float = 0.1
    """Largest increase of the share of scored answers that were wrong, 0-1. By chance alone an increase of 0.1 comes
    about once in 200 comparisons of 200 answers, 80 % of them right.
    """

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Return the default limits with those in `given`.

        Raises:
            ParamsError: a name is unknown, or its value is not a number from 0 up.
        """
        known = [field.name for field in fields(cls)]
        wrong = {name: value for name, value in given.items() if name not in known or not _is_limit(value)}
        if wrong:
            raise ParamsError(
                f"limits of the drift flow must be numbers from 0 up for {', '.join(known)}",
                given=", ".join(f"{name}: {value!r}" for name, value in wrong.items()),
                do="correct `parameters.limits` of the deployment in infra/prefect.yaml, then `make deploy`",
            )
        return cls(**given)


def _is_limit(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


@dataclass(frozen=True)
class Shift:
    """One figure and its limit."""

    name: str
    given: float
    limit: float

    @property
    def is_drift(self) -> bool:
        return self.given > self.limit

    def __str__(self) -> str:
        return f"{self.name} {self.given:.4f}, at most {self.limit:.4f}: {'DRIFT' if self.is_drift else 'as before'}"

    def as_record(self) -> dict[str, object]:
        return {**asdict(self), "is_drift": self.is_drift}


def shifts(reference: Traffic, now: Traffic, limits: Limits) -> list[Shift]:
    """Return the shifts in text length, in the share of unknown tokens and, given enough answers, in confidence."""
    found = [
        Shift("length_index", stability_index(reference.texts_by_length, now.texts_by_length), limits.max_index),
        Shift("unknown_increase", now.unknown_rate - reference.unknown_rate, limits.max_unknown_increase),
    ]
    if min(reference.num_answers, now.num_answers) >= limits.min_texts:
        index = stability_index(reference.answers_by_confidence, now.answers_by_confidence)
        found.append(Shift("confidence_index", index, limits.max_index))
    return found


def feedback_shift(reference: Traffic, now: Traffic, limits: Limits) -> Shift | None:
    """Return the shift in the share of wrong answers; None if feedback has scored too few."""
    if min(reference.num_scored, now.num_scored) < limits.min_scored:
        return None
    return Shift("wrong_increase", now.wrong_rate - reference.wrong_rate, limits.max_wrong_increase)
