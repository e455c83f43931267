"""Shift between two samples of a server's traffic, by counters of texts, answers and tokens for each model.

Counters of several servers are added up. The state kept between two polls of a server, or of all replicas of a fleet,
lets later traffic be compared with the first traffic of a version.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any, Self

import httpx
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from pydantic import ConfigDict, NonNegativeFloat, ValidationError

from clozeline.records.finetune.statistics import stability_index
from clozeline.records.record import Limit, Record, leaves
from clozeline.system.errors import DataError, ParamsError, TransientError

_TIMEOUT_SECONDS = 10.0
_IDENTITY = "clozeline_model_info"
_LENGTHS = "clozeline_text_tokens_bucket"
_CONFIDENCES = "clozeline_confidence_bucket"
_TOKENS = "clozeline_tokens_total"
_UNKNOWN = "clozeline_unknown_tokens_total"
_FEEDBACK = "clozeline_feedback_total"


class Traffic(Record):
    """Counts of one model, in the buckets of its server; they can be added and subtracted."""

    # Texts by upper bound of their length in tokens; each bucket starts above the bound before it.
    texts_by_length: Mapping[str, int] = {}
    # Answers by upper bound of the probability of the best answer; empty for an embedder.
    answers_by_confidence: Mapping[str, int] = {}
    tokens: int = 0
    unknown_tokens: int = 0
    right: int = 0  # number of answers that feedback confirmed as right
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

    def plus(self, other: "Traffic", sign: int = 1) -> "Traffic":
        theirs = dict(other)
        return Traffic.model_validate({name: _sum(count, theirs[name], sign) for name, count in self})

    def since(self, earlier: "Traffic") -> "Traffic":
        """Return the traffic after `earlier`; all traffic if a count fell, because the server restarted."""
        later = self.plus(earlier, -1)
        return self if any(count < 0 for _, count in leaves(later.model_dump()) if count) else later


def _sum(ours: Any, theirs: Any, sign: int) -> Any:
    """Return the sum of two counts, or of the counts in each bucket."""
    if isinstance(ours, int):
        return ours + sign * theirs
    return {bound: ours.get(bound, 0) + sign * theirs.get(bound, 0) for bound in {**ours, **theirs}}


class Served(Record):
    """One served model and its traffic since the server started."""

    version: str
    sha256: str
    traffic: Traffic


def ask(url: str, api_key: str | None = None) -> dict[str, Served]:
    """Return the models of the server at `url`, by name.

    Raises:
        TransientError: the server does not answer.
        ParamsError: `url` is not HTTP, such as the address of a registered model, which does not say who serves it.
        DataError: the answer does not hold the counters of `clozeline serve`.
    """
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    if not url.startswith(("http://", "https://")):
        raise ParamsError(
            f"{url} is not the URL of a server",
            do="name each server: CLOZELINE_SERVER=http://10.0.0.5:8000,http://10.0.0.6:8000",
        )
    try:
        answer = httpx.get(f"{url.rstrip('/')}/metrics", headers=headers, timeout=_TIMEOUT_SECONDS).raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        problem = f"{url}/metrics does not return the counters of a `clozeline serve`: {error}"
        raise TransientError(
            problem, do="start it, correct the URL, or set CLOZELINE_SERVER and CLOZELINE_API_KEYS of the worker"
        ) from error
    return read(answer.text, url)


def read(text: str, source: str) -> dict[str, Served]:
    """Return the models in the text of `/metrics`, by name.

    Raises:
        DataError: the text is not from `clozeline serve`.
    """
    try:
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        models = {sample.labels["model"]: sample.labels for sample in samples if sample.name == _IDENTITY}
        if not models:
            raise ValueError(f"no {_IDENTITY}")
    except ValueError as error:
        problem = f"{source} gives no counters of `clozeline serve` ({_IDENTITY}): {error}"
        raise DataError(problem, do="name a server of this version") from error
    of_model = {name: [sample for sample in samples if sample.labels.get("model") == name] for name in models}
    return {
        name: Served(version=labels["version"], sha256=labels["sha256"], traffic=_traffic(of_model[name]))
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
    bounds = sorted((one for one in samples if one.name == name), key=lambda one: float(one.labels["le"]))
    counts = [0, *(int(sample.value) for sample in bounds)]
    return {one.labels["le"]: count - below for one, (below, count) in zip(bounds, pairwise(counts), strict=True)}


class DriftLimits(Record):
    """Limits beyond which traffic counts as drifted."""

    model_config = ConfigDict(strict=True)

    # Smallest number of texts on each side. By chance alone the index is about 12 buckets * 2 / `min_texts`.
    min_texts: NonNegativeFloat = 1_000
    # Largest population stability index; 0.1 is usually called a small shift and 0.25 a large one.
    max_index: NonNegativeFloat = 0.2
    max_unknown_increase: NonNegativeFloat = 0.01  # largest increase of the share of unknown tokens, 0-1
    min_scored: NonNegativeFloat = 200  # smallest number of answers on each side that feedback has scored
    # Largest increase of the share of scored answers that were wrong, 0-1. By chance alone an increase of 0.1 comes
    # about once in 200 comparisons of 200 answers, 80 % of them right.
    max_wrong_increase: NonNegativeFloat = 0.1

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Return the default limits with those in `given`.

        Raises:
            ParamsError: a name is unknown, or its value is not a number from 0 up.
        """
        try:
            return cls.model_validate(dict(given))
        except ValidationError as error:
            wrong = ", ".join(f"{fault['loc'][0]}: {fault['input']!r}" for fault in error.errors())
            raise ParamsError(
                f"limits of the drift flow are not numbers from 0 up for {', '.join(cls.model_fields)}: {wrong}",
                do="correct `parameters.limits` of the deployment in infra/prefect.yaml, then `make deploy`",
            ) from error


def shifts(reference: Traffic, now: Traffic, limits: DriftLimits) -> list[Limit]:
    """Return the shifts in text length, in the share of unknown tokens and, given enough answers, in confidence."""
    index = stability_index(reference.texts_by_length, now.texts_by_length)
    unknown_increase = now.unknown_rate - reference.unknown_rate
    found = [
        Limit.at_most("length_index", index, limits.max_index),
        Limit.at_most("unknown_increase", unknown_increase, limits.max_unknown_increase),
    ]
    if min(reference.num_answers, now.num_answers) >= limits.min_texts:
        index = stability_index(reference.answers_by_confidence, now.answers_by_confidence)
        found.append(Limit.at_most("confidence_index", index, limits.max_index))
    return found


class Watched(Record):
    """Stored state of one model between two polls."""

    version: str
    sha256: str
    seen: dict[str, Traffic]  # counters at the last poll by the URL of the server
    # First traffic of this version; grows until it holds at least `DriftLimits.min_texts` texts.
    reference: Traffic = Traffic()
    since: Traffic = Traffic()  # traffic after the reference that has not been compared yet
    # First traffic of this version with at least `DriftLimits.min_scored` answers that feedback has scored.
    scored_reference: Traffic = Traffic()
    scored_since: Traffic = Traffic()  # traffic after that whose scored answers have not been compared yet

    def settled(self, limits: DriftLimits) -> "Watched":
        """Add new traffic to the references until they are large enough; then keep them, and drop what was compared."""
        changes = dict(self)
        for prefix, count, least in (("", "num_texts", limits.min_texts), ("scored_", "num_scored", limits.min_scored)):
            reference, since = changes[f"{prefix}reference"], changes[f"{prefix}since"]
            if getattr(reference, count) < least:
                changes |= {f"{prefix}reference": reference.plus(since), f"{prefix}since": Traffic()}
            elif getattr(since, count) >= least:
                changes[f"{prefix}since"] = Traffic()
        return self.model_copy(update=changes)


@dataclass(frozen=True)
class Verdict:
    """Result of the comparison for one model."""

    model: str
    version: str
    num_texts: int = 0  # number of texts that were compared; 0 if there are too few so far
    shifts: tuple[Limit, ...] = ()
    waits_for: str = ""  # why nothing was compared

    @property
    def is_drift(self) -> bool:
        return any(not shift.is_passed for shift in self.shifts)

    def __str__(self) -> str:
        outcome = "; ".join(map(str, self.shifts)) or self.waits_for
        return f"{self.model} version {self.version}, {self.num_texts:,} texts: {outcome}"


class DriftState(Record):
    """State of the models of one server or one fleet, stored in a file."""

    models: Mapping[str, Watched] = {}

    def look(
        self, servers: Mapping[str, Mapping[str, Served]], limits: DriftLimits
    ) -> tuple["DriftState", list[Verdict]]:
        """Return the new state, and a verdict for each model; `servers` has the models of each server by its URL.

        A model that the servers serve in several graphs, because they change now, keeps its state.
        """
        models: dict[str, Watched] = {}
        verdicts = []
        for name in dict.fromkeys(name for served in servers.values() for name in served):
            found = {url: served[name] for url, served in servers.items() if name in served}
            if len({one.sha256 for one in found.values()}) > 1:
                versions = " and ".join(sorted({served.version for served in found.values()}))
                verdicts.append(Verdict(name, versions, waits_for="the servers change from one version to another"))
                models |= {name: self.models[name]} if name in self.models else {}
            else:
                watched = self._carried_on(name, found)
                verdicts.append(_verdict(name, watched, limits))
                models[name] = watched.settled(limits)
        return DriftState(models=models), verdicts

    def _carried_on(self, name: str, by_url: Mapping[str, Served]) -> Watched:
        before, any_server = self.models.get(name), next(iter(by_url.values()))
        version, sha256 = any_server.version, any_server.sha256
        seen = {url: served.traffic for url, served in by_url.items()}
        if before is None or before.sha256 != sha256:
            # Counters continue when one version replaces another, so they are not all traffic of the new version.
            came = Traffic() if before else reduce(Traffic.plus, seen.values())
            return Watched(version=version, sha256=sha256, seen=seen, since=came, scored_since=came)
        came = reduce(Traffic.plus, (traffic.since(before.seen.get(url, Traffic())) for url, traffic in seen.items()))
        since, scored_since = before.since.plus(came), before.scored_since.plus(came)
        changes = {"version": version, "seen": seen, "since": since, "scored_since": scored_since}
        return before.model_copy(update=changes)


def _verdict(name: str, watched: Watched, limits: DriftLimits) -> Verdict:
    """Compare what came since with the reference; the scored answers apart, as soon as there are enough of them."""
    scored = watched.scored_since.wrong_rate - watched.scored_reference.wrong_rate
    is_scored = min(watched.scored_reference.num_scored, watched.scored_since.num_scored) >= limits.min_scored
    found = [Limit.at_most("wrong_increase", scored, limits.max_wrong_increase)] if is_scored else []
    num_first, num_new = watched.reference.num_texts, watched.since.num_texts
    waits_for = ""
    if num_first < limits.min_texts:
        waits_for = f"{num_first + num_new:,} of {limits.min_texts:,.0f} texts for the reference"
    elif num_new < limits.min_texts:
        waits_for = f"{num_new:,} of {limits.min_texts:,.0f} texts since the last comparison"
    else:
        found = [*shifts(watched.reference, watched.since, limits), *found]
    return Verdict(name, watched.version, 0 if waits_for else num_new, tuple(found), waits_for)
