"""Serving over HTTP: servers under the same load in turn, requests per second, and the latency of the slowest.

The load is first a closed loop, then an open loop at a rate that both servers can answer, so that only latency differs.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from types import MappingProxyType
from typing import Any

from comparison import servers
from comparison.elsewhere import at_its_best, tokenize_as_the_server
from comparison.frame import alternate, available_cores, options, report
from comparison.load import Load, OpenLoad, arrivals, load, open_load
from comparison.sentences import FasterPreset, mixed_texts, sentence_models, theirs_torch
from serving import verdict

CONCURRENCY = 16
# Open-loop rate as a share of the slower side's closed-loop rate: low enough that no queue grows without limit.
OPEN_SHARE = 0.7
_WARM_UP_REQUESTS = 32
_PROBED = 128
_PERCENTILES = (50, 95, 99)


@dataclass(frozen=True)
class Requests:
    """Requests that every server gets, each with a text of mixed length. Draw 0 warms up; each round has its own."""

    path: str
    number: int
    num_rounds: int

    def bodies(self, draw: int) -> list[bytes]:
        return [json.dumps({"inputs": [text]}).encode() for text in mixed_texts(self.number, draw)]


def fastapi() -> None:
    """Requests answered per second by `clozeline serve`, compared with FastAPI over sentence-transformers in ONNX INT8.

    Both sides use all-MiniLM-L6-v2 with the same weights and get the same requests to /embed, one text of mixed length
    each, over the loopback from 16 clients that send the next request as soon as they are answered. Ours has a worker
    thread per core. Theirs is comparison/sentence_server.py, as one process with that many threads or as a process per
    core with one thread: the better set-up counts in each round. It runs the INT8 preset and the tokenizer setting that
    are faster on this machine, found beforehand without HTTP. No answer is cached; each round has its own texts, after
    32 warm-up requests. Each server logs a line per request. Percentiles are of the latency that clients see;
    `closed_p99_is_lower` says whether ours is below the lowest of their set-ups.

    Then, in as many rounds, requests arrive at times that do not depend on answers (a Poisson process, the same for
    both sides), at 70 % of the slower side's rate. Latency then counts from the time when a request was due, refusals
    and failures are counted separately, and theirs is its better set-up.
    """
    chosen = options(fastapi.__doc__, rounds=5, requests=400).parse_args()
    num_threads = available_cores()
    tokenize_as_the_server(num_threads)
    models, texts = sentence_models(), mixed_texts(_PROBED)
    in_threads, in_processes = (FasterPreset.measured(models, threads_each, texts) for threads_each in (num_threads, 1))
    facts = verdict(models.ours) | in_threads.facts("fastapi_threads") | in_processes.facts("fastapi_processes")
    with (
        servers.ours(models, num_threads) as ours,
        servers.fastapi(models, 1, num_threads, in_threads) as threads,
        servers.fastapi(models, num_threads, 1, in_processes) as processes,
    ):
        theirs = {"fastapi_threads": threads, "fastapi_processes": processes}
        requests = Requests("/embed", chosen.requests, chosen.rounds)
        compare("serve_http_fastapi", requests, ours, theirs, facts=facts | servers.graph_of(ours))


def mlflow() -> None:
    """Requests answered per second by `clozeline serve`, compared with `mlflow models serve` of the same model.

    Both sides use all-MiniLM-L6-v2 with the same weights and get the same requests to /invocations, one text of mixed
    length each, over the loopback from 16 clients that send the next request as soon as they are answered. Ours has a
    worker thread per core. Theirs is MLflow's own flavor of sentence-transformers (torch, fp32), as one process with
    that many threads or as a process per core with one thread: the better set-up counts in each round. Its tokenizer
    uses the threads if a text is embedded faster then, which is tried first, in process. `mlflow models serve` of our
    INT8 graph, in a process per core, is reported too, but does not count. No answer is cached; each round has its own
    texts, after 32 warm-up requests. Percentiles are of the latency that clients see.

    Then, in as many rounds, requests arrive at times that do not depend on answers (a Poisson process, the same for
    both sides), at 70 % of the slower side's rate. Latency then counts from the time when a request was due, refusals
    and failures are counted separately, and theirs is its better set-up.
    """
    chosen = options(mlflow.__doc__, rounds=5, requests=400).parse_args()
    num_threads = available_cores()
    tokenize_as_the_server(num_threads)
    models = sentence_models()
    in_parallel = at_its_best(theirs_torch(num_threads), mixed_texts(1))[1]
    flavor, our_graph = servers.their_mlflow_model(), servers.our_mlflow_model(models)
    with (
        servers.ours(models, num_threads) as ours,
        servers.mlflow_serve(flavor, 1, num_threads, in_parallel=in_parallel) as threads,
        servers.mlflow_serve(flavor, num_threads, 1, in_parallel=in_parallel) as processes,
        servers.mlflow_serve(our_graph, num_threads, 1) as beside,
    ):
        theirs = {"mlflow_threads": threads, "mlflow_processes": processes}
        facts = verdict(models.ours) | servers.graph_of(ours) | {"mlflow_tokenizes_in_parallel": in_parallel}
        requests = Requests("/invocations", chosen.requests, chosen.rounds)
        compare("serve_http_mlflow", requests, ours, theirs, beside={"mlflow_of_our_graph": beside}, facts=facts)


def compare(
    name: str,
    asked: Requests,
    ours: int,
    theirs: Mapping[str, int],
    *,
    facts: Mapping[str, Any],
    beside: Mapping[str, int] = MappingProxyType({}),
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
