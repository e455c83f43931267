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

from collections.abc import Callable, Sequence
from functools import partial

from comparison.elsewhere import texts_per_second, tokenize_as_the_server
from comparison.frame import available_cores, options, report
from comparison.our_package import Ours, at_their_best, in_turn, verdict
from comparison.sentences import full_logits, masked_texts, sentence_models
from comparison.stock_onnx import PRESETS, FullLogits

NAME = "serve_fill_mask"
_TOP_K = 5
Fill = Callable[[Sequence[str]], list[list[int]]]


def main() -> None:
    chosen = options(__doc__, rounds=5, texts=256).parse_args()
    num_threads = available_cores()
    tokenize_as_the_server(num_threads)
    models, texts = sentence_models(), masked_texts(chosen.texts, "[MASK]")
    full = full_logits(models)

    def stock(file: str) -> Fill:
        return partial(FullLogits(full, file, num_threads).fill, top_k=_TOP_K)

    ours: Fill = partial(Ours(models.filling, num_threads).fill, top_k=_TOP_K)
    theirs, facts = at_their_best({preset: stock(file) for preset, file in PRESETS.items()}, texts)
    exact = stock("model.onnx")(texts)
    sides: dict[str, Fill] = {"ours": ours, **theirs}
    facts |= {f"agreement_with_fp32_{name}": _agreement(side(texts), exact) for name, side in sides.items()}
    draws = [masked_texts(chosen.texts, "[MASK]", draw) for draw in range(1, chosen.rounds + 1)]
    rounds, presets = in_turn(NAME, ours, theirs, draws, texts_per_second, in_a_call=chosen.texts)
    report(NAME, rounds, num_threads, facts | verdict(models.filling) | {"texts": len(texts)} | presets.facts())


def _agreement(found: Sequence[Sequence[int]], exact: Sequence[Sequence[int]]) -> float:
    same = [one[0] == right[0] for one, right in zip(found, exact, strict=True)]
    return round(sum(same) / len(same), 4)
