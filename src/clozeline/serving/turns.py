"""The turns of a model's versions: at each moment every replica of a fleet answers by the same version.

A new champion is announced so long before its turn that every replica has read of it by then. So the version that
answers at a moment follows from what was known long before, and from the clock; the replicas need not speak.

Clocks differ. From the beginning of a turn on no replica answers by the version before, and for `SKEW_SECONDS` requests
wait. So no client gets the old version after the new one unless two clocks differ by more.
"""

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from clozeline.registry.models import Announcement
from clozeline.serving.loading import LoadedModel

# Largest difference of two replicas' clocks at which no old answer follows a new one.
SKEW_SECONDS = 0.5
_NEVER = float("-inf")

# Answers for a model name by this model; by these others if a request names their version; the last are not loaded.
Offer = Callable[[str, LoadedModel, Sequence[LoadedModel], Collection[str]], None]


@dataclass(frozen=True, slots=True)
class VersionTurn:
    """A version and when it answers."""

    version: str
    announcement: Announcement

    @property
    def starts_seconds(self) -> float:
        return self.announcement.serve_from_seconds

    @property
    def load_by_seconds(self) -> float:
        """A replica that has not loaded it by then is not ready, so that its load balancer knows it by the turn."""
        return self.starts_seconds - (self.starts_seconds - self.announcement.announced_seconds) / 4

    def is_taken_back_by(self, later: Announcement) -> bool:
        """Whether the next champion came so early that no replica may answer by this one.

        After half of the notice a replica may miss the next champion until this one's turn, so the turn stays.
        """
        halfway = (self.announcement.announced_seconds + self.starts_seconds) / 2
        return later.announced_seconds <= halfway or later.serve_from_seconds <= self.starts_seconds


@dataclass(frozen=True, slots=True)
class VersionTurns:
    """The version whose turn it is, and those that follow."""

    current: str = ""  # empty: the first turn has not come yet
    started_seconds: float = _NEVER
    coming: tuple[VersionTurn, ...] = ()

    def at(self, seconds: float) -> "VersionTurns":
        """Return what is left of the turns at this moment."""
        begun = [turn for turn in self.coming if turn.starts_seconds <= seconds]
        if not begun:
            return self
        return VersionTurns(begun[-1].version, begun[-1].starts_seconds, self.coming[len(begun) :])

    def followed_by(self, version: str, announcement: Announcement) -> "VersionTurns":
        """Return these turns with that of the present champion as the last one."""
        kept = tuple(turn for turn in self.coming if not turn.is_taken_back_by(announcement))
        last = kept[-1].version if kept else self.current
        return replace(self, coming=kept if version == last else (*kept, VersionTurn(version, announcement)))

    @property
    def versions(self) -> frozenset[str]:
        return frozenset({self.current, *(turn.version for turn in self.coming)}) - {""}


@dataclass(frozen=True, slots=True)
class Plan:
    """The turns of one model and its loaded versions."""

    turns: VersionTurns
    loaded: Mapping[str, LoadedModel] = field(default_factory=dict)

    @classmethod
    def only(cls, model: LoadedModel) -> "Plan":
        """Return the plan of a model that answers now, and that nothing follows."""
        version = model.identity.version
        return cls(VersionTurns(version), {version: model})

    def at(self, seconds: float) -> "Plan":
        """Return the plan at this moment, without the versions whose turn is over."""
        turns = self.turns.at(seconds)
        kept = {version: model for version, model in self.loaded.items() if version in turns.versions}
        return Plan(turns, kept)

    def answers(self, seconds: float) -> bool:
        return self.turns.at(seconds).current in self.loaded

    def is_ready(self, seconds: float) -> bool:
        """Whether it answers now, and has loaded what answers soon."""
        soon = [turn.version for turn in self.turns.coming if turn.load_by_seconds <= seconds]
        return self.answers(seconds) and all(version in self.loaded for version in soon)


class VersionSchedule:
    """The plans of the models that follow an alias. Any thread may look; a look makes the changes that are due."""

    def __init__(self, offer: Offer, clock: Callable[[], float] = time.time) -> None:
        """`clock` returns the seconds since 1970; those of other machines are compared with it."""
        self._offer = offer
        self.clock = clock
        self._plans: dict[str, Plan] = {}
        self._lock = threading.Lock()

    def plan(self, name: str) -> Plan | None:
        return self._plans.get(name)

    def set(self, name: str, plan: Plan) -> None:
        with self._lock:
            self._take(name, plan)

    @property
    def answers(self) -> bool:
        """Whether each model whose turn it is is loaded."""
        return all(plan.answers(self.clock()) for plan in self._plans.values())

    @property
    def is_ready(self) -> bool:
        """Whether requests should be sent here: each model whose turn is near is loaded, too."""
        return all(plan.is_ready(self.clock()) for plan in self._plans.values())

    def seconds_to_wait(self) -> float:
        """Make the changes that are due; return how long requests have to wait until all other replicas made them."""
        seconds = self.clock()
        if any(plan.turns.at(seconds) is not plan.turns for plan in self._plans.values()):
            with self._lock:
                for name, plan in self._plans.items():
                    self._take(name, plan)
        started = max((plan.turns.started_seconds for plan in self._plans.values()), default=_NEVER)
        return max(0.0, started + SKEW_SECONDS - seconds)

    def _take(self, name: str, plan: Plan) -> None:
        plan = plan.at(self.clock())
        self._plans = {**self._plans, name: plan}  # other threads may be iterating over it
        current = plan.loaded.get(plan.turns.current)
        if current:
            others = [model for model in plan.loaded.values() if model is not current]
            self._offer(name, current, others, plan.turns.versions - plan.loaded.keys())
