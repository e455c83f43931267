"""Texts of mixed lengths embedded per second, compared with sentence-transformers' `backend="onnx"` in INT8.

Both sides use all-MiniLM-L6-v2 with the same weights, ONNX Runtime and number of threads, each in a process without
HTTP and without cached answers; each round has its own texts, after a warm-up call with others. Ours is the server's
scheduler: texts come as requests of 32 and are tokenized as they come, while workers with one thread each run texts of
similar length. Theirs is `encode` of all texts with its own sorting, batches of 32 and one session with all threads;
its tokenizer spreads a batch over the threads if that is faster, which is tried first. The better of its two INT8
presets counts. The cosine compares the embeddings of both sides with theirs in fp32.

Sorting 512 texts leaves little padding. In a second measurement (`…_in_requests`) both sides are called with 32 texts
at a time, each call after the answer to the one before: one batch of theirs, padded to its longest text.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from comparison.elsewhere import at_its_best, measured, texts_per_second, tokenize_as_the_server
from comparison.frame import BestOf, Rounds, alternate, available_cores, compared, finish, options
from comparison.our_package import REQUEST_TEXTS, Ours, verdict
from comparison.sentences import Embed, cosine, mixed_texts, sentence_models, theirs_onnx
from comparison.stock_onnx import PRESETS


def main() -> None:
    chosen = options(__doc__, rounds=5, texts=512).parse_args()
    num_threads = available_cores()
    tokenize_as_the_server(num_threads)
    models, texts = sentence_models(), mixed_texts(chosen.texts)
    ours = Ours(models.ours, num_threads).embed
    best = {preset: at_its_best(theirs_onnx(models, num_threads, file), texts) for preset, file in PRESETS.items()}
    theirs = {preset: embed for preset, (embed, _) in best.items()}
    exact = theirs_onnx(models, num_threads, "model.onnx")(texts)
    facts: dict[str, Any] = {
        f"cosine_with_fp32_{name}": cosine(side(texts), exact) for name, side in {"ours": ours, **theirs}.items()
    }
    facts |= {f"theirs_{preset}_tokenizes_in_parallel": in_parallel for preset, (_, in_parallel) in best.items()}
    draws = [mixed_texts(chosen.texts, draw) for draw in range(1, 2 * chosen.rounds + 1)]
    rounds, of_presets = _in_turn(ours, theirs, draws[: chosen.rounds], in_a_call=chosen.texts)
    in_requests, of_presets_in_requests = _in_turn(ours, theirs, draws[chosen.rounds :], in_a_call=REQUEST_TEXTS)
    facts |= in_requests.facts("in_requests", higher_is_better=True)
    facts |= of_presets.facts() | of_presets_in_requests.facts("_in_requests")
    finish(compared("serve_embed_mixed", rounds, num_threads, facts | verdict(models.ours) | {"texts": len(texts)}))


def _in_turn(
    ours: Embed, theirs: Mapping[str, Embed], draws: Sequence[Sequence[str]], *, in_a_call: int
) -> tuple[Rounds, BestOf]:
    """Measure ours and both presets of theirs, with other texts in each round; return the rounds and both presets."""

    def speed(embed: Embed, number: int) -> float:
        return measured(texts_per_second, embed, draws[number], in_a_call=in_a_call)

    presets = BestOf({preset: partial(speed, embed) for preset, embed in theirs.items()}, higher_is_better=True)
    return alternate(partial(speed, ours), presets, len(draws), f"texts/s, {in_a_call} in a call"), presets
