"""Two servers under the same load in turn: requests per second, and how long the slowest wait."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from types import MappingProxyType

from comparison.alternation import Comparison, alternate
from comparison.load import Load, load

CONCURRENCY = 16
_WARM_UP_REQUESTS = 32


@dataclass(frozen=True)
class Asked:
    """What is sent to every server."""

    path: str
    bodies: Sequence[bytes]


_NONE: Mapping[str, int] = MappingProxyType({})


def compare(
    name: str,
    goal: float,
    asked: Asked,
    ours: int,
    theirs: Mapping[str, int],
    *,
    beside: Mapping[str, int] = _NONE,
    num_rounds: int,
    num_threads: int,
) -> Comparison:
    """Load the server at the port `ours` and those of `theirs`, the best of which counts in each round.

    Those of `beside` are loaded as often, and told only.
    """
    loads: dict[str, list[Load]] = defaultdict(list)

    def measured(side: str, port: int) -> Load:
        loads[side].append(load(port, asked.path, asked.bodies, CONCURRENCY))
        return loads[side][-1]

    def best_of_theirs(_: int) -> float:
        for side, port in beside.items():
            measured(side, port)
        return max(measured(side, port).requests_per_second for side, port in theirs.items())

    for port in (ours, *theirs.values(), *beside.values()):
        load(port, asked.path, asked.bodies[:_WARM_UP_REQUESTS], CONCURRENCY)
    rounds = alternate(lambda _: measured("ours", ours).requests_per_second, best_of_theirs, num_rounds, "requests/s")
    facts: dict[str, object] = {"requests": len(asked.bodies), "concurrency": CONCURRENCY}
    for side, some in loads.items():
        for percentile in (50, 99):
            facts[f"{side}_p{percentile}_ms"] = median(one.milliseconds(percentile) for one in some)
        facts[f"{side}_requests_per_second"] = [round(one.requests_per_second, 1) for one in some]
    return Comparison(name, "requests/s", rounds, True, goal, num_threads, facts)
