"""Requests answered per second by `clozeline serve`, compared with `mlflow models serve` of the same model.

Both sides use all-MiniLM-L6-v2 with the same weights and get the same requests to /invocations, one text of mixed
length each, over the loopback from 16 clients that send the next request as soon as they are answered. Ours has a
worker thread per core. Theirs is MLflow's own flavor of sentence-transformers (torch, fp32), as one process with that
many threads or as a process per core with one thread: the better set-up counts in each round. Its tokenizer uses the
threads if a text is embedded faster then, which is tried first, in process. `mlflow models serve` of our INT8 graph, in
a process per core, is reported too, but does not count. No answer is cached; each round has its own texts, after 32
warm-up requests. Percentiles are of the latency that clients see.

Then, in as many rounds, requests arrive at times that do not depend on answers (a Poisson process, the same for both
sides), at 70 % of the slower side's rate. Latency then counts from the time when a request was due, refusals and
failures are counted separately, and theirs is its better set-up.
"""

from comparison import servers
from comparison.elsewhere import at_its_best, tokenize_as_the_server
from comparison.frame import available_cores, options
from comparison.our_package import verdict
from comparison.over_http import Requests, compare
from comparison.sentences import mixed_texts, sentence_models, theirs_torch


def main() -> None:
    chosen = options(__doc__, rounds=5, requests=400).parse_args()
    num_threads = available_cores()
    tokenize_as_the_server(num_threads)
    models = sentence_models()
    in_parallel = at_its_best(theirs_torch(num_threads), mixed_texts(1))[1]
    flavor, our_graph = servers.their_mlflow_model(), servers.our_mlflow_model(models)
    with (
        servers.ours(models, num_threads) as ours,
        servers.mlflow_serve(flavor, 1, num_threads, in_parallel=in_parallel) as threads,
        servers.mlflow_serve(flavor, num_threads, 1, in_parallel=in_parallel) as processes,
        servers.mlflow_serve(our_graph, num_threads, 1) as beside,
    ):
        theirs = {"mlflow_threads": threads, "mlflow_processes": processes}
        facts = verdict(models.ours) | servers.graph_of(ours) | {"mlflow_tokenizes_in_parallel": in_parallel}
        requests = Requests("/invocations", chosen.requests, chosen.rounds)
        compare("serve_http_mlflow", requests, ours, theirs, beside={"mlflow_of_our_graph": beside}, facts=facts)
