"""Texts of mixed lengths embedded per second, compared with sentence-transformers' defaults: torch, fp32.

Both sides use all-MiniLM-L6-v2 with the same weights and number of threads, in process and without cached answers; each
round has its own texts, after a warm-up call with others. Ours is the server's scheduler over its INT8 graph: texts
come as requests of 32 and are tokenized as they come, while workers with one thread each run texts of similar length.
Theirs is `encode` of all texts with its own sorting and batches of 32; its tokenizer spreads a batch over the threads
if that is faster, which is tried first. In a second measurement (`…_in_requests`) both sides are called with 32 texts
at a time, each call after the answer to the one before. The cosine compares the embeddings of both sides.
"""

from collections.abc import Sequence
from functools import partial

from comparison.elsewhere import at_its_best, texts_per_second, tokenize_as_the_server, tokenizing
from comparison.frame import alternate, available_cores, compared, finish, options
from comparison.our_package import REQUEST_TEXTS, Ours, verdict
from comparison.sentences import Embed, cosine, mixed_texts, sentence_models, theirs_torch

_PROBED = 128


def main() -> None:
    chosen = options(__doc__, rounds=5, texts=512).parse_args()
    num_threads = available_cores()
    tokenize_as_the_server(num_threads)
    models, texts = sentence_models(), mixed_texts(chosen.texts)
    ours, theirs_alone = Ours(models.ours, num_threads).embed, theirs_torch(num_threads)
    # Some texts are enough to choose the tokenizer setting; with all, torch would take minutes.
    in_parallel = at_its_best(theirs_alone, texts[:_PROBED])[1]
    theirs = tokenizing(theirs_alone, in_parallel)
    facts = {"cosine_of_both": cosine(ours(texts), theirs(texts)), "texts": len(texts)} | verdict(models.ours)
    facts |= {"theirs_tokenizes_in_parallel": in_parallel}
    draws = [mixed_texts(chosen.texts, draw) for draw in range(1, 2 * chosen.rounds + 1)]
    rounds, in_requests = (
        alternate(*(partial(_speed, embed, of_rounds, each) for embed in (ours, theirs)), chosen.rounds, "texts/s")
        for of_rounds, each in ((draws[: chosen.rounds], chosen.texts), (draws[chosen.rounds :], REQUEST_TEXTS))
    )
    finish(
        compared(
            "serve_embed_torch", rounds, num_threads, facts | in_requests.facts("in_requests", higher_is_better=True)
        )
    )


def _speed(embed: Embed, draws: Sequence[Sequence[str]], in_a_call: int, number: int) -> float:
    return texts_per_second(embed, draws[number], in_a_call=in_a_call)
