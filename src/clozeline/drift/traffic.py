"""Counters of a server for each model: texts by length, answers by confidence, tokens and unknown tokens."""

from collections.abc import Mapping
from http.client import HTTPException
from typing import Final
from urllib.request import Request, urlopen

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from pydantic import BaseModel, ConfigDict

from clozeline.errors import DataError, TransientError

_TIMEOUT_SECONDS: Final = 10.0
_IDENTITY: Final = "clozeline_model_info"
_LENGTHS: Final = "clozeline_text_tokens_bucket"
_CONFIDENCES: Final = "clozeline_confidence_bucket"
_TOKENS: Final = "clozeline_tokens_total"
_UNKNOWN: Final = "clozeline_unknown_tokens_total"
_FEEDBACK: Final = "clozeline_feedback_total"


class Traffic(BaseModel):
    """Counts of one model, in the buckets of its server; they can be added and subtracted."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    texts_by_length: dict[str, int] = {}
    """Texts by upper bound of their length in tokens; each bucket starts above the bound before it."""
    answers_by_confidence: dict[str, int] = {}
    """Answers by upper bound of the probability of the best answer; empty for an embedder."""
    tokens: int = 0
    unknown_tokens: int = 0
    right: int = 0
    """Number of answers that feedback confirmed as right."""
    wrong: int = 0

    @property
    def num_texts(self) -> int:
        return sum(self.texts_by_length.values())

    @property
    def num_answers(self) -> int:
        return sum(self.answers_by_confidence.values())

    @property
    def num_scored(self) -> int:
        return self.right + self.wrong

    @property
    def wrong_rate(self) -> float:
        """Share of the scored answers that were wrong, 0-1."""
        return self.wrong / self.num_scored if self.num_scored else 0.0

    @property
    def unknown_rate(self) -> float:
        """Share of unknown tokens, 0-1."""
        return self.unknown_tokens / self.tokens if self.tokens else 0.0

    def plus(self, other: "Traffic") -> "Traffic":
        return self._with(other, 1)

    def since(self, earlier: "Traffic") -> "Traffic":
        """Return the traffic after `earlier`; all traffic if a count fell, because the server restarted."""
        later = self._with(earlier, -1)
        counts = (
            *(*later.texts_by_length.values(), *later.answers_by_confidence.values()),
            *(later.tokens, later.unknown_tokens, later.right, later.wrong),
        )
        return self if min(counts) < 0 else later

    def _with(self, other: "Traffic", sign: int) -> "Traffic":
        return Traffic(
            texts_by_length=_sum(self.texts_by_length, other.texts_by_length, sign),
            answers_by_confidence=_sum(self.answers_by_confidence, other.answers_by_confidence, sign),
            tokens=self.tokens + sign * other.tokens,
            unknown_tokens=self.unknown_tokens + sign * other.unknown_tokens,
            right=self.right + sign * other.right,
            wrong=self.wrong + sign * other.wrong,
        )


class Served(BaseModel):
    """One served model and its traffic since the server started."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: str
    sha256: str
    traffic: Traffic


def ask(url: str, api_key: str | None = None) -> dict[str, Served]:
    """Return the models of the server at `url`, by name.

    Raises:
        TransientError: the server does not answer.
        DataError: `url` is not HTTP, or the answer does not hold the counters of `clozeline serve`.
    """
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    if not url.startswith(("http://", "https://")):
        raise DataError(f"{url} is not the URL of a server", do="give it as http://HOST:PORT")
    try:
        with urlopen(Request(f"{url.rstrip('/')}/metrics", headers=headers), timeout=_TIMEOUT_SECONDS) as answer:
            text = answer.read().decode("utf-8", "replace")
    except (OSError, HTTPException) as error:
        raise TransientError(
            f"{url}/metrics does not return the counters of a `clozeline serve`: {error}",
            do="start it, correct the URL, or set CLOZELINE_API_KEYS",
        ) from error
    return read(text, url)


def read(text: str, source: str) -> dict[str, Served]:
    """Return the models in the text of `/metrics`, by name.

    Raises:
        DataError: the text is not from `clozeline serve`.
    """
    try:
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    except ValueError as error:
        raise _other_make(source, str(error)) from error
    models = {sample.labels["model"]: sample.labels for sample in samples if sample.name == _IDENTITY}
    if not models:
        raise _other_make(source, f"no {_IDENTITY}")
    return {
        name: Served(
            version=labels["version"],
            sha256=labels["sha256"],
            traffic=_traffic([sample for sample in samples if sample.labels.get("model") == name]),
        )
        for name, labels in models.items()
    }


def _traffic(samples: list[Sample]) -> Traffic:
    totals = {sample.name: int(sample.value) for sample in samples if "le" not in sample.labels}
    scored = {sample.labels["answer"]: int(sample.value) for sample in samples if sample.name == _FEEDBACK}
    return Traffic(
        texts_by_length=_buckets(samples, _LENGTHS),
        answers_by_confidence=_buckets(samples, _CONFIDENCES),
        tokens=totals.get(_TOKENS, 0),
        unknown_tokens=totals.get(_UNKNOWN, 0),
        right=scored.get("right", 0),
        wrong=scored.get("wrong", 0),
    )


def _buckets(samples: list[Sample], name: str) -> dict[str, int]:
    """Return counts per bucket; Prometheus gives cumulative counts."""
    bounds = sorted(
        (sample for sample in samples if sample.name == name), key=lambda sample: float(sample.labels["le"])
    )
    counts = [int(sample.value) for sample in bounds]
    below = [0, *counts][: len(counts)]
    return {sample.labels["le"]: count - less for sample, count, less in zip(bounds, counts, below, strict=True)}


def _sum(ours: Mapping[str, int], theirs: Mapping[str, int], sign: int) -> dict[str, int]:
    bounds = [*ours, *(bound for bound in theirs if bound not in ours)]
    return {bound: ours.get(bound, 0) + sign * theirs.get(bound, 0) for bound in bounds}


def _other_make(source: str, given: str) -> DataError:
    return DataError(
        f"{source} gives no counters of `clozeline serve` ({_IDENTITY}): {given}", do="name a server of this version"
    )
