"""Two servers under the same load in turn: requests per second, and the latency of the slowest requests.

The load is first a closed loop, then an open loop at a rate that both servers can answer, so that only latency differs.
"""

import json
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from types import MappingProxyType
from typing import Any

import pandas as pd

from comparison.frame import alternate, available_cores, report
from comparison.load import Load, OpenLoad, arrivals, load, open_load
from comparison.sentences import mixed_texts

_LOG = logging.getLogger(__name__)

CONCURRENCY = 16
OPEN_SHARE = 0.7
"""Open-loop rate as a share of the slower side's closed-loop rate: low enough that no queue grows without limit."""
_WARM_UP_REQUESTS = 32
_PERCENTILES = (50, 95, 99)
_NONE: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True)
class Requests:
    """Requests that every server gets, each with a text of mixed length. Draw 0 warms up; each round has its own."""

    path: str
    number: int
    num_rounds: int

    def bodies(self, draw: int) -> list[bytes]:
        return [json.dumps({"inputs": [text]}).encode() for text in mixed_texts(self.number, draw)]


def compare(
    name: str,
    asked: Requests,
    ours: int,
    theirs: Mapping[str, int],
    *,
    facts: Mapping[str, Any],
    beside: Mapping[str, int] = _NONE,
) -> None:
    """Load the servers at the ports `ours` and `theirs`, and write the line; in each round, the best of theirs counts.

    The servers of `beside` are loaded as often, but only reported. In as many further rounds, our server and the best
    of theirs get requests at fixed moments, the same for both.
    """
    loads: dict[str, list[Load]] = defaultdict(list)

    def measured(side: str, port: int, number: int) -> float:
        loads[side].append(load(port, asked.path, draws[1 + number], CONCURRENCY))
        return loads[side][-1].requests_per_second

    def best_of_theirs(number: int) -> float:
        for side, port in beside.items():
            measured(side, port, number)
        return max(measured(side, port, number) for side, port in theirs.items())

    draws = [asked.bodies(draw) for draw in range(1 + 2 * asked.num_rounds)]
    for port in (ours, *theirs.values(), *beside.values()):
        load(port, asked.path, draws[0][:_WARM_UP_REQUESTS], CONCURRENCY)
    rounds = alternate(partial(measured, "ours", ours), best_of_theirs, asked.num_rounds, "requests/s")
    speeds = {side: median(one.requests_per_second for one in some) for side, some in loads.items()}
    best = max(theirs, key=lambda side: speeds[side])
    per_second = OPEN_SHARE * min(speeds["ours"], speeds[best])
    opened = _opened(asked.path, draws[1 + asked.num_rounds :], per_second, {"ours": ours, best: theirs[best]})
    _tell(loads, opened)
    told: dict[str, Any] = {
        **facts,
        "requests": asked.number,
        "warm_up_requests": _WARM_UP_REQUESTS,
        "concurrency": CONCURRENCY,
        "open_share": OPEN_SHARE,
        "open_arrivals_per_second": round(per_second, 1),
    }
    for side, some in loads.items():
        told |= {f"{side}_{what}": value for what, value in _waits(some).items()}
        told[f"{side}_requests_per_second"] = [round(one.requests_per_second, 1) for one in some]
    for side, of_side in opened.items():
        told |= {f"open_{side}_{what}": value for what, value in (_waits(of_side) | _losses(of_side)).items()}
    told |= _slowest("closed", {side: loads[side] for side in ("ours", *theirs)}) | _slowest("open", opened)
    report(name, rounds, available_cores(), told)


def _opened(
    path: str, draws: Sequence[Sequence[bytes]], per_second: float, ports: Mapping[str, int]
) -> dict[str, list[OpenLoad]]:
    """Load both sides in turn, once for each of `draws`, at moments that depend on the number of the round only."""
    loads: dict[str, list[OpenLoad]] = {side: [] for side in ports}

    def p99(side: str, number: int) -> float:
        due_seconds = arrivals(per_second, len(draws[number]), number)
        one = open_load(ports[side], path, draws[number], due_seconds, num_connections=CONCURRENCY)
        loads[side].append(one)
        return one.milliseconds(99)

    ours, theirs = ports
    alternate(partial(p99, ours), partial(p99, theirs), len(draws), "ms of 99 in 100")
    return loads


def _slowest(loop: str, loads: Mapping[str, Sequence[Load]]) -> dict[str, Any]:
    """Return our p99 latency, the lowest p99 latency of their set-ups, and whether ours is lower."""
    p99 = {side: _waits(some)["p99_ms"] for side, some in loads.items()}
    ours = p99.pop("ours")
    return {
        f"{loop}_p99_ms_ours": ours,
        f"{loop}_p99_ms_theirs": min(p99.values()),
        f"{loop}_p99_is_lower": ours < min(p99.values()),
    }


def _waits(loads: Sequence[Load]) -> dict[str, float]:
    return {
        f"p{percentile}_ms": round(median(one.milliseconds(percentile) for one in loads), 2)
        for percentile in _PERCENTILES
    }


def _losses(loads: Sequence[OpenLoad]) -> dict[str, float]:
    """Return the refused and failed requests of all rounds, and the longest delay in sending one."""
    return {
        "refused": sum(one.num_refused for one in loads),
        "failed": sum(one.num_failed for one in loads),
        "sent_late_at_most_ms": round(1000 * max(max(one.late_seconds) for one in loads), 2),
    }


def _tell(closed: Mapping[str, Sequence[Load]], opened: Mapping[str, Sequence[OpenLoad]]) -> None:
    """Log latencies and losses as a table. The closed loop has no losses: there, an error ends the benchmark."""
    nothing = {"refused": 0, "failed": 0}
    rows = {(side, "closed"): _waits(loads) | nothing for side, loads in closed.items()}
    rows |= {(side, "open"): _waits(loads) | _losses(loads) for side, loads in opened.items()}
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis(["", "loop"])
    for line in table.to_string(sparsify=False).splitlines():
        _LOG.info("%s", line)
