"""Requests answered per second by `clozeline serve`, compared with FastAPI over sentence-transformers in ONNX INT8.

Both sides use all-MiniLM-L6-v2 with the same weights and get the same requests to /embed, one text of mixed length
each, over the loopback from 16 clients that send the next request as soon as they are answered. Ours has a worker
thread per core. Theirs is comparison/sentence_server.py, as one process with that many threads or as a process per core
with one thread: the better set-up counts in each round. It runs the INT8 preset and the tokenizer setting that are
faster on this machine, found beforehand without HTTP. No answer is cached; each round has its own texts, after 32
warm-up requests. Each server logs a line per request. Percentiles are of the latency that clients see;
`closed_p99_is_lower` says whether ours is below the lowest of their set-ups.

Then, in as many rounds, requests arrive at times that do not depend on answers (a Poisson process, the same for both
sides), at 70 % of the slower side's rate. Latency then counts from the time when a request was due, refusals and
failures are counted separately, and theirs is its better set-up.
"""

from comparison import servers
from comparison.elsewhere import tokenize_as_the_server
from comparison.frame import available_cores, options
from comparison.our_package import verdict
from comparison.over_http import Requests, compare
from comparison.sentences import FasterPreset, mixed_texts, sentence_models

_PROBED = 128


def main() -> None:
    chosen = options(__doc__, rounds=5, requests=400).parse_args()
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
