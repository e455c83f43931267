"""Requests answered in a second by `clozeline serve`, against FastAPI with sentence-transformers in ONNX INT8.

all-MiniLM-L6-v2 on both sides, the same weights; the same requests to /embed, one text of mixed length each, from 16
clients that send their next as soon as they are answered, over the loopback from a process of this machine. Ours has a
worker thread for each core. Theirs is comparison/sentence_server.py, once as one process with as many threads and once
as a process for each core with one thread: the better one counts in each round. Each runs the INT8 preset that answers
these texts sooner in so many threads on this machine, and its tokenizer has as many where that is faster: both are
tried first, without HTTP. No answer is kept; each round has texts of its own, and 32 requests come before that do not
count. Either server writes a line for each request. Percentiles are of the latency that clients see;
`closed_p99_is_lower` says whether ours is below theirs, in the set-up of theirs where it is lowest.

Then, in as many rounds, requests arrive at moments that no answer changes (a Poisson process, the same for both sides):
at 70 % of what the slower side answered before. Here latency counts from the moment at which a request was due,
refusals and failures are counted apart, and theirs is the better of its set-ups.
"""

import argparse
import json

from comparison import servers
from comparison.alternation import finish, report_progress
from comparison.machine import available_cores
from comparison.over_http import Asked, compare
from comparison.presets import FasterPreset
from comparison.sentences import mixed_texts, sentence_models
from comparison.tokenizing import tokenize_as_the_server
from comparison.verdict import verdict

_PROBED = 128


def main() -> None:
    report_progress()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=400)
    chosen = parser.parse_args()
    num_threads = available_cores()
    tokenize_as_the_server(num_threads)
    models, texts = sentence_models(), mixed_texts(_PROBED)

    def bodies(draw: int) -> list[bytes]:
        return [json.dumps({"inputs": [text]}).encode() for text in mixed_texts(chosen.requests, draw)]

    in_threads, in_processes = (FasterPreset.measured(models, threads_each, texts) for threads_each in (num_threads, 1))
    facts = verdict(models.ours) | in_threads.facts("fastapi_threads") | in_processes.facts("fastapi_processes")
    with (
        servers.ours(models, num_threads) as ours,
        servers.fastapi(models, 1, num_threads, in_threads) as threads,
        servers.fastapi(models, num_threads, 1, in_processes) as processes,
    ):
        comparison = compare(
            "serve_http_fastapi",
            2.0,
            Asked("/embed", bodies),
            ours,
            {"fastapi_threads": threads, "fastapi_processes": processes},
            facts=facts | servers.graph_of(ours),
            num_rounds=chosen.rounds,
            num_threads=num_threads,
        )
    finish(comparison)


if __name__ == "__main__":
    main()
