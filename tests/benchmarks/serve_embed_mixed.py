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

from typing import Any

from comparison.elsewhere import texts_per_second, tokenize_as_the_server
from comparison.frame import available_cores, options, report
from comparison.our_package import REQUEST_TEXTS, Ours, at_their_best, in_turn, verdict
from comparison.sentences import cosine, mixed_texts, sentence_models, theirs_onnx
from comparison.stock_onnx import PRESETS

NAME = "serve_embed_mixed"


def main() -> None:
    chosen = options(__doc__, rounds=5, texts=512).parse_args()
    num_threads = available_cores()
    tokenize_as_the_server(num_threads)
    models, texts = sentence_models(), mixed_texts(chosen.texts)
    ours = Ours(models.ours, num_threads).embed
    presets = {preset: theirs_onnx(models, num_threads, file) for preset, file in PRESETS.items()}
    theirs, facts = at_their_best(presets, texts)
    exact = theirs_onnx(models, num_threads, "model.onnx")(texts)
    sides: dict[str, Any] = {"ours": ours, **theirs}
    facts |= {f"cosine_with_fp32_{name}": cosine(side(texts), exact) for name, side in sides.items()}
    draws = [mixed_texts(chosen.texts, draw) for draw in range(1, 2 * chosen.rounds + 1)]
    rounds, of_presets = in_turn(NAME, ours, theirs, draws[::2], texts_per_second, in_a_call=chosen.texts)
    in_requests, of_each = in_turn(NAME, ours, theirs, draws[1::2], texts_per_second, in_a_call=REQUEST_TEXTS)
    facts |= in_requests.facts("in_requests", higher_is_better=True) | verdict(models.ours) | {"texts": len(texts)}
    report(NAME, rounds, num_threads, facts | of_presets.facts() | of_each.facts("_in_requests"))
