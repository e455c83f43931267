"""Texts of mixed lengths embedded per second, compared with sentence-transformers' defaults: torch, fp32.

Both sides use all-MiniLM-L6-v2 with the same weights and number of threads, in process and without cached answers; each
round has its own texts, after a warm-up call with others. Ours is the server's scheduler over its INT8 graph: texts
come as requests of 32 and are tokenized as they come, while workers with one thread each run texts of similar length.
Theirs is `encode` of all texts with its own sorting and batches of 32; its tokenizer spreads a batch over the threads
if that is faster, which is tried first. In a second measurement (`…_in_requests`) both sides are called with 32 texts
at a time, each call after the answer to the one before. The cosine compares the embeddings of both sides.
"""

from comparison.elsewhere import texts_per_second, tokenize_as_the_server
from comparison.frame import available_cores, options, report
from comparison.our_package import REQUEST_TEXTS, Ours, at_their_best, in_turn, verdict
from comparison.sentences import cosine, mixed_texts, sentence_models, theirs_torch

NAME = "serve_embed_torch"
_PROBED = 128
"""Texts by which the tokenizer setting is chosen; with all, torch would take minutes."""


def main() -> None:
    chosen = options(__doc__, rounds=5, texts=512).parse_args()
    num_threads = available_cores()
    tokenize_as_the_server(num_threads)
    models, texts = sentence_models(), mixed_texts(chosen.texts)
    ours = Ours(models.ours, num_threads).embed
    theirs, facts = at_their_best({"torch": theirs_torch(num_threads)}, texts[:_PROBED])
    facts |= {"cosine_of_both": cosine(ours(texts), theirs["torch"](texts)), "texts": len(texts)} | verdict(models.ours)
    draws = [mixed_texts(chosen.texts, draw) for draw in range(1, 2 * chosen.rounds + 1)]
    rounds, _ = in_turn(NAME, ours, theirs, draws[::2], texts_per_second, in_a_call=chosen.texts)
    in_requests, _ = in_turn(NAME, ours, theirs, draws[1::2], texts_per_second, in_a_call=REQUEST_TEXTS)
    report(NAME, rounds, num_threads, facts | in_requests.facts("in_requests", higher_is_better=True))
