"""Serving in process: our scheduler and its workers without HTTP, beside sentence-transformers and a usual export.

Beside each figure stands which graph of ours is timed, and whether the gates of params.yaml allow it to be served.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from clozeline.exporting.ladder import checks
from clozeline.inference.language import Embedder, OpenEncoder
from clozeline.inference.open_model import AnyQuestion
from clozeline.inference.package import load
from clozeline.params.delivery import ExportParams
from clozeline.records.finetune.scored_items import Values, spearman
from clozeline.records.finetune.statistics import bootstrap_interval
from clozeline.records.package import read_manifest
from clozeline.serving.admission import Admission
from clozeline.serving.queue import Lane, Ticket
from clozeline.serving.scheduler import BatchWorkers, Scheduler
from comparison import elsewhere, sentences
from comparison.elsewhere import Ask, at_its_best, measured, texts_per_second
from comparison.frame import BENCHMARKS, BestOf, Rounds, alternate, available_cores, options, report
from comparison.labelled import Item, scored_pairs
from comparison.sentences import Embed, Embeddings, mixed_texts, sentence_models, theirs_onnx
from comparison.stages import params_tree
from comparison.stock_onnx import PRESETS, FullLogits

_LOG = logging.getLogger(__name__)
REQUEST_TEXTS = 32
# Texts by which torch's tokenizer setting is chosen; with all, it would take minutes.
_PROBED = 128
_TOP_K = 5
# Share of fp32's correlation that our INT8 graph should keep.
GOAL_SHARE = 0.995


class Ours:
    """Texts come as requests of 32 and are tokenized as they come, while workers with one thread each run them."""

    def __init__(self, package: Path, num_threads: int) -> None:
        model = load(package)
        assert isinstance(model, Embedder)
        self._model = model
        self._settled = threading.Semaphore(0)
        no_limit = Admission(max_waiting_tokens=10**9, max_wait_seconds=1e9)
        self._scheduler = Scheduler(
            num_threads, lambda tickets: self._settled.release(len(tickets)), admission=no_limit
        )
        self._workers = BatchWorkers(self._scheduler, num_threads, lambda batch, seconds: None)

    def embed(self, texts: Sequence[str]) -> Embeddings:
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
    clock: Callable[..., float] = texts_per_second,
    **how: int,
) -> tuple[Rounds, BestOf]:
    """Measure ours and each set-up of theirs by `clock`, with other texts in each round; return rounds and set-ups."""
    benchmark = BENCHMARKS[name]

    def figure(side: Ask, number: int) -> float:
        return float(measured(clock, side, draws[number], **how))

    setups = {name: partial(figure, side) for name, side in theirs.items()}
    best = BestOf(setups, higher_is_better=benchmark.higher_is_better)
    return alternate(partial(figure, ours), best, len(draws), benchmark.unit), best


def _threads_for_both(num_threads: int) -> int:
    elsewhere.tokenize_as_the_server(num_threads)
    return num_threads


def embed_single() -> None:
    """Milliseconds to embed one short text, compared with sentence-transformers' `backend="onnx"` in INT8.

    Both sides use all-MiniLM-L6-v2 with the same weights, ONNX Runtime and number of threads in one session, each in a
    process without HTTP and without cached answers, after a warm-up of as many calls as a round has. Texts of 6 to 12
    words come one after another, different ones in each round; the figure of a round is the median of its calls. A text
    is tokenized in the calling thread. The better of sentence-transformers' two INT8 presets counts in each round.
    """
    chosen = options(embed_single.__doc__, rounds=5, texts=300, threads=available_cores()).parse_args()
    num_threads = _threads_for_both(chosen.threads)
    models, texts = sentence_models(), sentences.short_texts(chosen.texts)
    model = load(models.ours, num_threads=num_threads)
    assert isinstance(model, Embedder)
    ours = partial(model.embed, truncate=True)
    theirs = {preset: theirs_onnx(models, num_threads, file) for preset, file in PRESETS.items()}
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
    num_threads = _threads_for_both(available_cores())
    models, texts = sentence_models(), mixed_texts(chosen.texts)
    presets = {preset: theirs_onnx(models, num_threads, file) for preset, file in PRESETS.items()}
    theirs, facts = at_their_best(presets, texts)
    ours = Ours(models.ours, num_threads).embed
    exact = theirs_onnx(models, num_threads, "model.onnx")(texts)
    sides: dict[str, Any] = {"ours": ours, **theirs}
    facts |= {f"cosine_with_fp32_{name}": sentences.cosine(side(texts), exact) for name, side in sides.items()}
    facts |= verdict(models.ours) | {"texts": len(texts)}
    _whole_and_in_requests("serve_embed_mixed", ours, theirs, num_threads, chosen.rounds, facts)


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
    num_threads = _threads_for_both(available_cores())
    models, texts = sentence_models(), mixed_texts(chosen.texts)
    theirs, facts = at_their_best({"torch": sentences.theirs_torch(num_threads)}, texts[:_PROBED])
    ours = Ours(models.ours, num_threads).embed
    facts |= {"cosine_of_both": sentences.cosine(ours(texts), theirs["torch"](texts)), "texts": len(texts)}
    facts |= verdict(models.ours)
    _whole_and_in_requests("serve_embed_torch", ours, theirs, num_threads, chosen.rounds, facts)


def _whole_and_in_requests(
    name: str, ours: Ask, theirs: Mapping[str, Ask], num_threads: int, num_rounds: int, facts: Mapping[str, Any]
) -> None:
    """Measure with all texts in a call, then with a request's in a call; write the line."""
    draws = [mixed_texts(facts["texts"], draw) for draw in range(1, 2 * num_rounds + 1)]
    rounds, whole = in_turn(name, ours, theirs, draws[::2], in_a_call=facts["texts"])
    in_requests, each = in_turn(name, ours, theirs, draws[1::2], in_a_call=REQUEST_TEXTS)
    told = in_requests.facts("in_requests", higher_is_better=True)
    several = whole.facts() | each.facts("_in_requests") if len(theirs) > 1 else {}
    report(name, rounds, num_threads, {**facts, **told, **several})


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
    num_threads = _threads_for_both(available_cores())
    models, texts = sentence_models(), sentences.masked_texts(chosen.texts, "[MASK]")
    full = sentences.full_logits(models)

    def stock(file: str) -> Callable[[Sequence[str]], list[list[int]]]:
        return partial(FullLogits(full, file, num_threads).fill, top_k=_TOP_K)

    ours = Ours(models.filling, num_threads).fill
    theirs, facts = at_their_best({preset: stock(file) for preset, file in PRESETS.items()}, texts)
    exact = stock("model.onnx")(texts)
    sides: dict[str, Any] = {"ours": ours, **theirs}
    facts |= {f"agreement_with_fp32_{name}": _agreement(side(texts), exact) for name, side in sides.items()}
    draws = [sentences.masked_texts(chosen.texts, "[MASK]", draw) for draw in range(1, chosen.rounds + 1)]
    rounds, presets = in_turn("serve_fill_mask", ours, theirs, draws, in_a_call=chosen.texts)
    facts |= verdict(models.filling) | {"texts": len(texts)} | presets.facts()
    report("serve_fill_mask", rounds, num_threads, facts)


def _agreement(found: Sequence[Sequence[int]], exact: Sequence[Sequence[int]]) -> float:
    same = [one[0] == right[0] for one, right in zip(found, exact, strict=True)]
    return round(sum(same) / len(same), 4)


def embed_quality() -> None:
    """Share of Spearman's correlation with human scores that INT8 keeps, compared with sentence-transformers' presets.

    Both sides use all-MiniLM-L6-v2 with the same weights and the scored pairs of STS 2016 that lie beside the project
    (or in the folder that CLOZELINE_BENCHMARK_LABELLED names); without them there is nothing to measure. The figure is
    the correlation of the cosines of the INT8 graph / that of fp32 (sentence-transformers' `model.onnx`); the better
    preset counts. The 95 % intervals are by bootstrap over the same pairs for both graphs.
    """
    options(embed_quality.__doc__).parse_args()
    pairs, num_threads = scored_pairs(), available_cores()
    facts: dict[str, Any] = {}
    rounds = Rounds((), ())
    if pairs:
        facts = _kept_shares(pairs, num_threads)
        rounds = Rounds((facts["share_ours"],), (max(facts[f"share_{name}"] for name in PRESETS),))
    else:
        _LOG.warning("there is no labelled data beside the project, and CLOZELINE_BENCHMARK_LABELLED names none")
    report("serve_embed_quality", rounds, num_threads, facts | {"pairs": len(pairs), "goal_share": GOAL_SHARE})


def _kept_shares(pairs: Sequence[Item], num_threads: int) -> dict[str, Any]:
    models = sentence_models()
    sides: dict[str, Embed] = {name: theirs_onnx(models, num_threads, file) for name, file in PRESETS.items()}
    sides["ours"] = Ours(models.ours, num_threads).embed
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
