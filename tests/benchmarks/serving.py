"""Serving: in process, our scheduler and its workers beside sentence-transformers and a usual export; then servers
under the same load in turn, requests per second, and the latency of the slowest.

Beside each figure stands which graph of ours is timed, and whether the gates of params.yaml allow it to be served. The
load over HTTP is first a closed loop, then an open loop at a rate that both servers can answer, so that only latency
differs.
"""

import json
import logging
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from clozeline.exporting.ladder import checks
from clozeline.inference.language import Embedder, OpenEncoder
from clozeline.inference.open_model import AnyQuestion
from clozeline.inference.package import load as open_package
from clozeline.params.delivery import ExportParams
from clozeline.records.finetune.scored_items import Values, spearman
from clozeline.records.finetune.statistics import bootstrap_interval
from clozeline.records.package import read_manifest
from clozeline.serving.admission import Admission
from clozeline.serving.queue import Lane, Ticket
from clozeline.serving.scheduler import BatchWorkers, Scheduler
from comparison import elsewhere, sentences
from comparison.elsewhere import PRESETS, Ask, at_its_best, measured, settings
from comparison.frame import BENCHMARKS, BestOf, Rounds, alternate, available_cores, options, report
from comparison.labelled import NO_DATA, Item, scored_pairs
from comparison.load import Load, arrivals, load, open_load
from comparison.sentences import Embed, SentenceModels, mixed_texts, sentence_models, theirs_onnx, theirs_presets
from comparison.stages import params_tree

_LOG = logging.getLogger(__name__)
REQUEST_TEXTS = 32
# Texts by which torch's tokenizer setting and the preset of a server are chosen; with all, it would take minutes.
_PROBED = 128
_TOP_K = 5
# Share of fp32's correlation that our INT8 graph should keep.
GOAL_SHARE = 0.995


class Ours:
    """Texts come as requests of 32 and are tokenized as they come, while workers with one thread each run them."""

    def __init__(self, package: Path, num_threads: int) -> None:
        model = open_package(package)
        assert isinstance(model, Embedder)
        self._model = model
        self._settled = threading.Semaphore(0)
        no_limit = Admission(max_waiting_tokens=10**9, max_wait_seconds=1e9)
        self._scheduler = Scheduler(
            num_threads, lambda tickets: self._settled.release(len(tickets)), admission=no_limit
        )
        self._workers = BatchWorkers(self._scheduler, num_threads, lambda batch, seconds: None)

    def embed(self, texts: Sequence[str]) -> sentences.Embeddings:
        """Return the vectors, [T, H]."""
        return np.array(self._answers(texts, lambda some: self._model.embedding(some, truncate=True)))

    def fill(self, texts: Sequence[str]) -> list[list[int]]:
        """Return for each text the likeliest tokens for its one mask, best first."""
        model = self._model
        assert isinstance(model, OpenEncoder)
        answers = self._answers(texts, lambda some: model.filling(some, top_k=_TOP_K, truncate=True))
        return [[word.token for word in words] for (words,) in answers]

    def _answers(self, texts: Sequence[str], asked: Callable[[Sequence[str]], AnyQuestion]) -> list[Any]:
        tickets = []
        for at in range(0, len(texts), REQUEST_TEXTS):
            question = asked(texts[at : at + REQUEST_TEXTS])
            tickets.append(Ticket(Lane(self._model, question.output), question, self._scheduler.clock()))
            self._scheduler.submit(tickets[-1])
        for _ in tickets:
            self._settled.acquire()
        return [answer for ticket in tickets for answer in ticket.answers]


def verdict(package: Path) -> dict[str, Any]:
    """Return the JSON fields of our side: the served graph, its scheme, and every check with its limit.

    The limits are those of params.yaml, whatever `package` was exported with. They are checked on the scheme that is
    served; if none is, on the last that was tried. Log a warning if the graph is an INT8 graph that `make run` would
    not serve, or if it is fp32 because no INT8 scheme passed.
    """
    manifest = read_manifest(package)
    served = [rung for rung in manifest.ladder if rung.scheme == manifest.quantization]
    rung = (served or manifest.ladder)[-1]
    told = checks(rung, ExportParams.model_validate(params_tree({})["export"]).gates)
    is_int8 = manifest.served == "int8"
    if failed := [str(check) for check in told if not check.is_passed]:
        what = "INT8 IS TIMED THAT WOULD NOT BE SERVED" if is_int8 else "FP32 IS TIMED, NO INT8 SCHEME PASSED"
        _LOG.warning("%s: %s: %s", package, what, "; ".join(failed))
    numbers = {name: len(value) if isinstance(value, tuple) else value for name, value in rung.scheme}  # not names
    return {
        "ours_precision": manifest.served,
        "ours_scheme": numbers if is_int8 else None,
        "ours_int8_passes": not failed,
        "ours_int8_checks": [str(check) for check in told],
    }


def at_their_best(setups: Mapping[str, Ask], texts: Sequence[str]) -> tuple[dict[str, Ask], dict[str, Any]]:
    """Return each set-up with the faster tokenizer setting for `texts`, and the JSON fields that say which it is."""
    best = {name: at_its_best(ask, texts) for name, ask in setups.items()}
    facts = {f"theirs_{name}_tokenizes_in_parallel": in_parallel for name, (_, in_parallel) in best.items()}
    return {name: ask for name, (ask, _) in best.items()}, facts


def in_turn(
    name: str,
    ours: Ask,
    theirs: Mapping[str, Ask],
    draws: Sequence[Sequence[str]],
    clock: Callable[..., float] = elsewhere.texts_per_second,
    **how: int,
) -> tuple[Rounds, BestOf]:
    """Measure ours and each set-up of theirs by `clock`, with other texts in each round; return rounds and set-ups."""
    benchmark = BENCHMARKS[name]

    def figure(side: Ask, number: int) -> float:
        return float(measured(clock, side, draws[number], **how))

    setups = {name: partial(figure, side) for name, side in theirs.items()}
    best = BestOf(setups, higher_is_better=benchmark.higher_is_better)
    return alternate(partial(figure, ours), best, len(draws), benchmark.unit), best


def _as_in_the_server(num_threads: int) -> int:
    """Let our tokenizer run in the calling thread, as in the server; a side that spreads its batches gets so many
    threads.
    """
    os.environ.update(settings(False, num_threads))
    return num_threads


def embed_single() -> None:
    """Milliseconds to embed one short text, compared with sentence-transformers' `backend="onnx"` in INT8.

    Both sides use all-MiniLM-L6-v2 with the same weights, ONNX Runtime and number of threads in one session, each in a
    process without HTTP and without cached answers, after a warm-up of as many calls as a round has. Texts of 6 to 12
    words come one after another, different ones in each round; the figure of a round is the median of its calls. A text
    is tokenized in the calling thread. The better of sentence-transformers' two INT8 presets counts in each round.
    """
    chosen = options(embed_single.__doc__, rounds=5, texts=300, threads=available_cores()).parse_args()
    num_threads = _as_in_the_server(chosen.threads)
    models, texts = sentence_models(), sentences.short_texts(chosen.texts)
    model = open_package(models.ours, num_threads=num_threads)
    assert isinstance(model, Embedder)
    ours, theirs = partial(model.embed, truncate=True), theirs_presets(models, num_threads)
    vectors = ours(texts)
    facts = {f"cosine_of_ours_and_{name}": sentences.cosine(vectors, embed(texts)) for name, embed in theirs.items()}
    draws = [sentences.short_texts(chosen.texts, draw) for draw in range(1, chosen.rounds + 1)]
    rounds, presets = in_turn("serve_embed_single", ours, theirs, draws, elsewhere.median_milliseconds)
    facts |= verdict(models.ours) | {"texts": len(texts)} | presets.facts()
    report("serve_embed_single", rounds, num_threads, facts)


def embed_mixed() -> None:
    """Texts of mixed lengths embedded per second, compared with sentence-transformers' `backend="onnx"` in INT8.

    Both sides use all-MiniLM-L6-v2 with the same weights, ONNX Runtime and number of threads, each in a process without
    HTTP and without cached answers; each round has its own texts, after a warm-up call with others. Ours is the
    server's scheduler: texts come as requests of 32 and are tokenized as they come, while workers with one thread each
    run texts of similar length. Theirs is `encode` of all texts with its own sorting, batches of 32 and one session
    with all threads; its tokenizer spreads a batch over the threads if that is faster, which is tried first. The better
    of its two INT8 presets counts. The cosine compares the embeddings of both sides with theirs in fp32.

    Sorting 512 texts leaves little padding. In a second measurement (`…_in_requests`) both sides are called with 32
    texts at a time, each call after the answer to the one before: one batch of theirs, padded to its longest text.
    """
    chosen = options(embed_mixed.__doc__, rounds=5, texts=512).parse_args()
    num_threads = _as_in_the_server(available_cores())
    models, texts = sentence_models(), mixed_texts(chosen.texts)
    theirs, facts = at_their_best(theirs_presets(models, num_threads), texts)
    ours = Ours(models.ours, num_threads).embed
    exact = theirs_onnx(models, num_threads, "model.onnx")(texts)
    sides: dict[str, Any] = {"ours": ours, **theirs}
    facts |= {f"cosine_with_fp32_{name}": sentences.cosine(side(texts), exact) for name, side in sides.items()}
    _whole_and_in_requests("serve_embed_mixed", models, ours, theirs, chosen.rounds, facts | {"texts": len(texts)})


def embed_torch() -> None:
    """Texts of mixed lengths embedded per second, compared with sentence-transformers' defaults: torch, fp32.

    Both sides use all-MiniLM-L6-v2 with the same weights and number of threads, in process and without cached answers;
    each round has its own texts, after a warm-up call with others. Ours is the server's scheduler over its INT8 graph:
    texts come as requests of 32 and are tokenized as they come, while workers with one thread each run texts of similar
    length. Theirs is `encode` of all texts with its own sorting and batches of 32; its tokenizer spreads a batch over
    the threads if that is faster, which is tried first. In a second measurement (`…_in_requests`) both sides are called
    with 32 texts at a time, each call after the answer to the one before. The cosine compares the embeddings of both
    sides.
    """
    chosen = options(embed_torch.__doc__, rounds=5, texts=512).parse_args()
    num_threads = _as_in_the_server(available_cores())
    models, texts = sentence_models(), mixed_texts(chosen.texts)
    theirs, facts = at_their_best({"torch": sentences.theirs_torch(num_threads)}, texts[:_PROBED])
    ours = Ours(models.ours, num_threads).embed
    facts |= {"cosine_of_both": sentences.cosine(ours(texts), theirs["torch"](texts)), "texts": len(texts)}
    _whole_and_in_requests("serve_embed_torch", models, ours, theirs, chosen.rounds, facts)


def _whole_and_in_requests(
    name: str, models: SentenceModels, ours: Ask, theirs: Mapping[str, Ask], num_rounds: int, facts: Mapping[str, Any]
) -> None:
    """Measure with all texts in a call, then with a request's in a call; write the line."""
    draws = [mixed_texts(facts["texts"], draw) for draw in range(1, 2 * num_rounds + 1)]
    rounds, whole = in_turn(name, ours, theirs, draws[::2], in_a_call=facts["texts"])
    in_requests, each = in_turn(name, ours, theirs, draws[1::2], in_a_call=REQUEST_TEXTS)
    told = in_requests.facts("in_requests", higher_is_better=True)
    several = whole.facts() | each.facts("_in_requests") if len(theirs) > 1 else {}
    report(name, rounds, available_cores(), {**facts, **verdict(models.ours), **told, **several})


def fill_mask() -> None:
    """Masks filled per second, compared with a usual export of the same model: the logits of every token, in INT8.

    Both sides use all-MiniLM-L6-v2 with the same random vocabulary head and number of threads, in process and without
    cached answers, after a warm-up call. Texts have mixed lengths and one mask each, different ones in each round; the
    answer is the 5 likeliest words. Ours is the server's scheduler over its INT8 graph, which projects only masks.
    Theirs is optimum's graph in the better of two INT8 presets, in batches of 32 texts of similar length, without
    torch, its tokenizer spread over the threads if that is faster: `transformers.pipeline` would be slower. No INT8
    scheme passes the gates of params.yaml with a random head; ours is exported anyway for its speed, and the line says
    so. The agreement is the share of masks with the same first word on both sides (a random head scores words
    similarly, and the two INT8 schemes differ).
    """
    chosen = options(fill_mask.__doc__, rounds=5, texts=256).parse_args()
    num_threads = _as_in_the_server(available_cores())
    models, texts = sentence_models(), sentences.masked_texts(chosen.texts)
    full = sentences.full_logits(models)

    def stock(file: str) -> Callable[[Sequence[str]], list[list[int]]]:
        return partial(elsewhere.FullLogits(full, file, num_threads).fill, top_k=_TOP_K)

    ours = Ours(models.filling, num_threads).fill
    theirs, facts = at_their_best({preset: stock(file) for preset, file in PRESETS.items()}, texts)
    exact = [tokens[0] for tokens in stock("model.onnx")(texts)]
    sides: dict[str, Any] = {"ours": ours, **theirs}
    for name, side in sides.items():
        agreed = np.mean([tokens[0] == right for tokens, right in zip(side(texts), exact, strict=True)])
        facts[f"agreement_with_fp32_{name}"] = round(float(agreed), 4)
    draws = [sentences.masked_texts(chosen.texts, draw) for draw in range(1, chosen.rounds + 1)]
    rounds, presets = in_turn("serve_fill_mask", ours, theirs, draws, in_a_call=chosen.texts)
    facts |= verdict(models.filling) | {"texts": len(texts)} | presets.facts()
    report("serve_fill_mask", rounds, num_threads, facts)


def embed_quality() -> None:
    """Share of Spearman's correlation with human scores that INT8 keeps, compared with sentence-transformers' presets.

    Both sides use all-MiniLM-L6-v2 with the same weights and the scored pairs of STS 2016 that lie beside the project
    (or in the folder that CLOZELINE_BENCHMARK_LABELLED names); without them there is nothing to measure. The figure is
    the correlation of the cosines of the INT8 graph / that of fp32 (sentence-transformers' `model.onnx`); the better
    preset counts. The 95 % intervals are by bootstrap over the same pairs for both graphs.
    """
    options(embed_quality.__doc__).parse_args()
    pairs, num_threads = scored_pairs(), available_cores()
    facts: dict[str, Any] = {"pairs": len(pairs), "goal_share": GOAL_SHARE}
    rounds = Rounds((), ())
    if pairs:
        facts |= _kept_shares(pairs, num_threads)
        rounds = Rounds((facts["share_ours"],), (max(facts[f"share_{name}"] for name in PRESETS),))
    else:
        _LOG.warning(NO_DATA)
    report("serve_embed_quality", rounds, num_threads, facts)


def _kept_shares(pairs: Sequence[Item], num_threads: int) -> dict[str, Any]:
    models = sentence_models()
    sides: dict[str, Embed] = {**theirs_presets(models, num_threads), "ours": Ours(models.ours, num_threads).embed}
    score_N = np.array([pair["score"] for pair in pairs])
    exact_N = _cosines(theirs_onnx(models, num_threads, "model.onnx"), pairs)
    facts: dict[str, Any] = {"spearman_fp32": spearman(score_N, exact_N)} | verdict(models.ours)
    for name, side in sides.items():
        cosine_N = _cosines(side, pairs)

        def share(places_N: npt.NDArray[np.int64], cosine_N: Values = cosine_N) -> float:
            given_N = score_N[places_N]
            return spearman(given_N, cosine_N[places_N]) / spearman(given_N, exact_N[places_N])

        facts[f"spearman_{name}"] = spearman(score_N, cosine_N)
        facts[f"share_{name}"] = facts[f"spearman_{name}"] / facts["spearman_fp32"]
        facts[f"interval_{name}"] = bootstrap_interval(share, len(score_N))
    return facts


def _cosines(embed: Embed, pairs: Sequence[Item]) -> Values:
    first_NH, second_NH = (embed([pair[side] for pair in pairs]) for side in ("sentence1", "sentence2"))
    return (first_NH.astype(np.float64) * second_NH).sum(axis=1)


CONCURRENCY = 16
# Open-loop rate as a share of the slower side's closed-loop rate: low enough that no queue grows without limit.
OPEN_SHARE = 0.7
_WARM_UP_REQUESTS = 32
_PERCENTILES = (50, 95, 99)


def http_fastapi() -> None:
    """Requests answered per second by `clozeline serve`, compared with FastAPI over sentence-transformers in ONNX INT8.

    Both sides use all-MiniLM-L6-v2 with the same weights and get the same requests to /embed, one text of mixed length
    each, over the loopback from 16 clients that send the next request as soon as they are answered. Ours has a worker
    thread per core. Theirs is `create_app` of comparison/elsewhere.py, as one process with that many threads or as a
    process per core with one thread: the better set-up counts in each round. It runs the INT8 preset and the tokenizer
    setting that are faster on this machine, found beforehand without HTTP. No answer is cached; each round has its own
    texts, after 32 warm-up requests. Each server logs a line per request. Percentiles are of the latency that clients
    see; `closed_p99_is_lower` says whether ours is below the lowest of their set-ups.

    Then, in as many rounds, requests arrive at times that do not depend on answers (a Poisson process, the same for
    both sides), at 70 % of the slower side's rate. Latency then counts from the time when a request was due, refusals
    and failures are counted separately, and theirs is its better set-up.
    """
    chosen = options(http_fastapi.__doc__, rounds=5, requests=400).parse_args()
    num_threads = _as_in_the_server(available_cores())
    models, texts = sentence_models(), mixed_texts(_PROBED)
    facts = verdict(models.ours)
    shapes = {"fastapi_threads": (1, num_threads), "fastapi_processes": (num_threads, 1)}
    faster = {name: faster_preset(theirs_presets(models, shape[1]), texts) for name, shape in shapes.items()}
    for name, (preset, in_parallel, speeds) in faster.items():
        facts |= {f"{name}_preset": preset, f"{name}_tokenizes_in_parallel": in_parallel}
        facts[f"{name}_presets_texts_per_second"] = speeds
    threads, processes = (sentences.fastapi(models, *shape, *faster[name][:2]) for name, shape in shapes.items())
    with sentences.serve(models, num_threads) as ours, threads as one, processes as several:
        theirs = dict(zip(shapes, (one, several), strict=True))
        facts |= sentences.graph_of(ours)
        compare("serve_http_fastapi", "/embed", chosen.requests, chosen.rounds, ours, theirs, facts)


def faster_preset(presets: Mapping[str, Ask], texts: Sequence[str]) -> tuple[str, bool, dict[str, float]]:
    """Return the preset that is faster with one text in a call, whether its tokenizer spreads a batch over threads, and
    the speeds of both.
    """
    best = {preset: at_its_best(ask, texts[:1]) for preset, ask in presets.items()}
    rounds: dict[str, list[float]] = {preset: [] for preset in best}
    for _ in range(3):
        for preset, (ask, _in_parallel) in best.items():
            rounds[preset].append(measured(elsewhere.texts_per_second, ask, texts, in_a_call=1))
    speeds = {preset: round(median(some), 1) for preset, some in rounds.items()}
    name = max(speeds, key=lambda preset: speeds[preset])
    return name, best[name][1], speeds


def http_mlflow() -> None:
    """Requests answered per second by `clozeline serve`, compared with `mlflow models serve` of the same model.

    Both sides use all-MiniLM-L6-v2 with the same weights and get the same requests to /invocations, one text of mixed
    length each, over the loopback from 16 clients that send the next request as soon as they are answered. Ours has a
    worker thread per core. Theirs is MLflow's own flavor of sentence-transformers (torch, fp32), as one process with
    that many threads or as a process per core with one thread: the better set-up counts in each round. Its tokenizer
    uses the threads if a text is embedded faster then, which is tried first, in process. No answer is
    cached; each round has its own texts, after 32 warm-up requests. Percentiles are of the latency that clients see.

    Then, in as many rounds, requests arrive at times that do not depend on answers (a Poisson process, the same for
    both sides), at 70 % of the slower side's rate. Latency then counts from the time when a request was due, refusals
    and failures are counted separately, and theirs is its better set-up.
    """
    chosen = options(http_mlflow.__doc__, rounds=5, requests=400).parse_args()
    num_threads = _as_in_the_server(available_cores())
    models = sentence_models()
    in_parallel = at_its_best(sentences.theirs_torch(num_threads), mixed_texts(1))[1]
    flavor = sentences.their_mlflow_model()
    with (
        sentences.serve(models, num_threads) as ours,
        sentences.mlflow_serve(flavor, 1, num_threads, in_parallel) as threads,
        sentences.mlflow_serve(flavor, num_threads, 1, in_parallel) as processes,
    ):
        theirs = {"mlflow_threads": threads, "mlflow_processes": processes}
        facts = verdict(models.ours) | sentences.graph_of(ours) | {"mlflow_tokenizes_in_parallel": in_parallel}
        compare("serve_http_mlflow", "/invocations", chosen.requests, chosen.rounds, ours, theirs, facts)


def compare(
    name: str,
    path: str,
    num_requests: int,
    num_rounds: int,
    ours: int,
    theirs: Mapping[str, int],
    facts: Mapping[str, Any],
) -> None:
    """Load the servers at the ports `ours` and `theirs`, and write the line; in each round, the best of theirs counts.

    In as many further rounds, our server and the best of theirs get requests at fixed moments, the same for both. Draw
    0 warms up; each round has its own.
    """
    ports = {"ours": ours, **theirs}
    draws = [
        [json.dumps({"inputs": [text]}).encode() for text in mixed_texts(num_requests, draw)]
        for draw in range(1 + 2 * num_rounds)
    ]
    closed: dict[str, list[Load]] = defaultdict(list)
    opened: dict[str, list[Load]] = defaultdict(list)

    def in_closed_loop(side: str, number: int) -> float:
        closed[side].append(load(ports[side], path, draws[1 + number], CONCURRENCY))
        return closed[side][-1].requests_per_second

    def best_of_theirs(number: int) -> float:
        return max(in_closed_loop(side, number) for side in theirs)

    def in_open_loop(side: str, number: int) -> float:
        due_seconds, bodies = arrivals(per_second, num_requests, number), draws[1 + num_rounds + number]
        opened[side].append(open_load(ports[side], path, bodies, due_seconds, num_connections=CONCURRENCY))
        return opened[side][-1].milliseconds(99)

    for port in ports.values():
        load(port, path, draws[0][:_WARM_UP_REQUESTS], CONCURRENCY)
    rounds = alternate(partial(in_closed_loop, "ours"), best_of_theirs, num_rounds, "requests/s")
    speeds = {side: median(one.requests_per_second for one in some) for side, some in closed.items()}
    best = max(theirs, key=lambda side: speeds[side])
    per_second = OPEN_SHARE * min(speeds["ours"], speeds[best])
    alternate(partial(in_open_loop, "ours"), partial(in_open_loop, best), num_rounds, "ms of 99 in 100")
    told: dict[str, Any] = {
        **facts,
        "requests": num_requests,
        "warm_up_requests": _WARM_UP_REQUESTS,
        "concurrency": CONCURRENCY,
        "open_share": OPEN_SHARE,
        "open_arrivals_per_second": round(per_second, 1),
    }
    for side, some in closed.items():
        told[f"{side}_requests_per_second"] = [round(one.requests_per_second, 1) for one in some]
    for side, some in opened.items():
        told[f"open_{side}_refused"] = sum(one.num_refused for one in some)
        told[f"open_{side}_failed"] = sum(one.num_failed for one in some)
        latest = max(max(one.late_seconds) for one in some)
        told[f"open_{side}_sent_late_at_most_ms"] = round(1000 * latest, 2)
    report(name, rounds, available_cores(), told | _waits("closed", "", closed) | _waits("open", "open_", opened))


def _waits(loop: str, prefix: str, loads: Mapping[str, Sequence[Load]]) -> dict[str, Any]:
    """Return the latencies of each side, our p99, the lowest p99 of their set-ups, and whether ours is lower."""
    waits = {
        f"{prefix}{side}_p{nth}_ms": round(median(one.milliseconds(nth) for one in some), 2)
        for side, some in loads.items()
        for nth in _PERCENTILES
    }
    p99 = {side: waits[f"{prefix}{side}_p99_ms"] for side in loads}
    ours, theirs = p99.pop("ours"), min(p99.values())
    told = {f"{loop}_p99_ms_ours": ours, f"{loop}_p99_ms_theirs": theirs, f"{loop}_p99_is_lower": ours < theirs}
    return waits | told
