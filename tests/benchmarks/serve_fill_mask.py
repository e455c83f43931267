"""Masks filled per second, compared with a usual export of the same model: the logits of every token, in INT8.

Both sides use all-MiniLM-L6-v2 with the same random vocabulary head and number of threads, in process and without
cached answers, after a warm-up call. Texts have mixed lengths and one mask each, different ones in each round; the
answer is the 5 likeliest words. Ours is the server's scheduler over its INT8 graph, which projects only masks. Theirs
is optimum's graph in the better of two INT8 presets, in batches of 32 texts of similar length, without torch, its
tokenizer spread over the threads if that is faster: `transformers.pipeline` would be slower. No INT8 scheme passes the
gates of params.yaml with a random head; ours is exported anyway for its speed, and the line says so. The agreement is
the share of masks with the same first word on both sides (a random head scores words similarly, and the two INT8
schemes differ).
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from comparison.elsewhere import at_its_best, tokenize_as_the_server
from comparison.frame import BestOf, alternate, available_cores, compared, finish, options
from comparison.our_package import Ours, verdict
from comparison.sentences import full_logits, masked_texts, sentence_models
from comparison.stock_onnx import PRESETS, FullLogits

_TOP_K = 5
Fill = Callable[[Sequence[str]], list[list[int]]]


def main() -> None:
    chosen = options(__doc__, rounds=5, texts=256).parse_args()
    num_threads = available_cores()
    tokenize_as_the_server(num_threads)
    models, texts = sentence_models(), masked_texts(chosen.texts, "[MASK]")
    full = full_logits(models)
    ours: Fill = partial(Ours(models.filling, num_threads).fill, top_k=_TOP_K)
    stock: dict[str, Fill] = {
        preset: partial(FullLogits(full, file, num_threads).fill, top_k=_TOP_K) for preset, file in PRESETS.items()
    }
    best = {preset: at_its_best(fill, texts) for preset, fill in stock.items()}
    theirs = {preset: fill for preset, (fill, _) in best.items()}
    exact = FullLogits(full, "model.onnx", num_threads).fill(texts, _TOP_K)
    facts: dict[str, Any] = {
        f"agreement_with_fp32_{name}": _agreement(side, texts, exact)
        for name, side in [("ours", ours), *theirs.items()]
    }
    facts |= {f"theirs_{preset}_tokenizes_in_parallel": in_parallel for preset, (_, in_parallel) in best.items()}
    draws = [masked_texts(chosen.texts, "[MASK]", draw) for draw in range(1, chosen.rounds + 1)]
    presets = BestOf(
        {preset: partial(_texts_per_second, fill, draws) for preset, fill in theirs.items()}, higher_is_better=True
    )
    rounds = alternate(partial(_texts_per_second, ours, draws), presets, chosen.rounds, "texts/s")
    finish(
        compared(
            "serve_fill_mask",
            rounds,
            num_threads,
            facts | verdict(models.filling) | {"texts": len(texts)} | presets.facts(),
        )
    )


def _agreement(fill: Fill, texts: Sequence[str], exact: Sequence[Sequence[int]]) -> float:
    same = [found[0] == right[0] for found, right in zip(fill(texts), exact, strict=True)]
    return round(sum(same) / len(same), 4)


def _texts_per_second(fill: Fill, draws: Sequence[Sequence[str]], number: int) -> float:
    texts = draws[number]
    started = time.perf_counter()
    fill(texts)
    return len(texts) / (time.perf_counter() - started)
