"""State kept between two polls of a server, or of all replicas of a fleet: later traffic is compared with the first
traffic of a version."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from clozeline.drift.comparison import Limits, Shift, feedback_shift, shifts
from clozeline.drift.traffic import Served, Traffic
from clozeline.errors import ArtifactError
from clozeline.storage.atomic import replacing_file


class Watched(BaseModel):
    """Stored state of one model between two polls."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: str
    sha256: str
    seen: dict[str, Traffic] | Traffic
    """Counters at the last poll by the URL of the server; without a URL in states of one server that are older."""
    reference: Traffic = Traffic()
    """First traffic of this version; grows until it holds at least `Limits.min_texts` texts."""
    since: Traffic = Traffic()
    """Traffic after the reference that has not been compared yet."""
    scored_reference: Traffic = Traffic()
    """First traffic of this version with at least `Limits.min_scored` answers that feedback has scored."""
    scored_since: Traffic = Traffic()
    """Traffic after that whose scored answers have not been compared yet."""


@dataclass(frozen=True)
class Verdict:
    """Result of the comparison for one model."""

    model: str
    version: str
    num_texts: int
    """Number of texts that were compared; 0 if there are too few so far."""
    shifts: tuple[Shift, ...]
    waits_for: str = ""
    """Why nothing was compared."""

    @property
    def is_drift(self) -> bool:
        return any(shift.is_drift for shift in self.shifts)

    def __str__(self) -> str:
        outcome = "; ".join(map(str, self.shifts)) or self.waits_for
        return f"{self.model} version {self.version}, {self.num_texts:,} texts: {outcome}"


class Watch(BaseModel):
    """State of the models of one server or one fleet, stored in a file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    models: dict[str, Watched] = {}

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read `file`; return an empty state if it is missing.

        Raises:
            ArtifactError: the file is damaged.
        """
        if not file.exists():
            return cls()
        try:
            return cls.model_validate_json(file.read_bytes())
        except ValidationError as error:
            raise ArtifactError(
                f"{file} cannot be used: {error.errors(include_url=False)[0]['msg']}",
                do="remove it: the traffic from now on then becomes the reference",
            ) from error

    def write(self, file: Path) -> None:
        with replacing_file(file) as beside:
            beside.write_text(self.model_dump_json(indent=2), encoding="utf-8")

    def look(self, servers: Mapping[str, Mapping[str, Served]], limits: Limits) -> tuple["Watch", list[Verdict]]:
        """Return the new state, and a verdict for each model; `servers` has the models of each server by its URL.

        A model that the servers serve in several graphs, because they change now, keeps its state.
        """
        names = dict.fromkeys(name for models in servers.values() for name in models)
        found = {name: {url: models[name] for url, models in servers.items() if name in models} for name in names}
        mixed = {name: by_url for name, by_url in found.items() if len({one.sha256 for one in by_url.values()}) > 1}
        watched = {name: self._carried_on(name, by_url) for name, by_url in found.items() if name not in mixed}
        verdicts = [_verdict(name, model, limits) for name, model in watched.items()]
        verdicts += [_between(name, by_url.values()) for name, by_url in mixed.items()]
        compared = {verdict.model for verdict in verdicts if verdict.num_texts}
        kept = {
            name: model.model_copy(update={"since": Traffic()}) if name in compared else model
            for name, model in watched.items()
        }
        settled = {name: _settled(model, limits) for name, model in kept.items()}
        waiting = {name: self.models[name] for name in mixed if name in self.models}
        return Watch(models=settled | waiting), verdicts

    def _carried_on(self, name: str, by_url: Mapping[str, Served]) -> Watched:
        before, any_server = self.models.get(name), next(iter(by_url.values()))
        version, sha256 = any_server.version, any_server.sha256
        seen = {url: served.traffic for url, served in by_url.items()}
        if before is None or before.sha256 != sha256:
            # Counters continue when one version replaces another, so they are not all traffic of the new version.
            came = Traffic() if before else _total(seen.values())
            return Watched(version=version, sha256=sha256, seen=seen, since=came, scored_since=came)
        earlier = dict.fromkeys(seen, before.seen) if isinstance(before.seen, Traffic) else before.seen
        came = _total(traffic.since(earlier.get(url, Traffic())) for url, traffic in seen.items())
        return before.model_copy(
            update={
                "version": version,
                "seen": seen,
                "since": before.since.plus(came),
                "scored_since": before.scored_since.plus(came),
            }
        )


def _total(parts: Iterable[Traffic]) -> Traffic:
    return reduce(Traffic.plus, parts, Traffic())


def _between(name: str, servers: Iterable[Served]) -> Verdict:
    versions = " and ".join(sorted({served.version for served in servers}))
    return Verdict(name, versions, num_texts=0, shifts=(), waits_for="the servers change from one version to another")


def _settled(watched: Watched, limits: Limits) -> Watched:
    """Add new traffic to the references until they are large enough; keep them fixed from then on."""
    if watched.reference.num_texts < limits.min_texts:
        watched = watched.model_copy(update={"reference": watched.reference.plus(watched.since), "since": Traffic()})
    if watched.scored_reference.num_scored < limits.min_scored:
        reference = watched.scored_reference.plus(watched.scored_since)
        return watched.model_copy(update={"scored_reference": reference, "scored_since": Traffic()})
    if watched.scored_since.num_scored >= limits.min_scored:  # it was compared
        return watched.model_copy(update={"scored_since": Traffic()})
    return watched


def _verdict(name: str, watched: Watched, limits: Limits) -> Verdict:
    scored = tuple(filter(None, [feedback_shift(watched.scored_reference, watched.scored_since, limits)]))

    def waiting(num_texts: int, what: str) -> Verdict:
        reason = f"{num_texts:,} of {limits.min_texts:,} texts {what}"
        return Verdict(model=name, version=watched.version, num_texts=0, shifts=scored, waits_for=reason)

    if watched.reference.num_texts < limits.min_texts:
        return waiting(watched.reference.num_texts + watched.since.num_texts, "for the reference")
    if watched.since.num_texts < limits.min_texts:
        return waiting(watched.since.num_texts, "since the last comparison")
    found = (*shifts(watched.reference, watched.since, limits), *scored)
    return Verdict(model=name, version=watched.version, num_texts=watched.since.num_texts, shifts=found)
