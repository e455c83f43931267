"""From raw text to trainable tokens, in MB of raw text per second, compared with `datasets` as in run_mlm.py.

Both sides read one file of JSON Lines (the built-in corpus, or what CLOZELINE_BENCHMARK_TEXT names) with the same
existing tokenizer and number of processes; each run has a fresh process and an empty cache, and imports are not timed.
Ours is preprocess and tokenize: it reads, repairs and normalizes text, drops exact and near duplicates, splits by
document, tokenizes the training and validation splits, and writes shards. Theirs is `load_dataset("json")`, `map` to
tokens and `map` to full rows, without cleaning or dropping. So ours does more per byte, but tokenizes less text (no
duplicates, no holdout split); the ratio does not compare tokenization alone.
"""

import os
import subprocess
import sys
from pathlib import Path

from comparison.frame import alternate, available_cores, options, report
from comparison.texts import TEXT_VARIABLE, built_in, news, prepared, raw_texts


def main() -> None:
    parser = options(__doc__, rounds=3)
    parser.add_argument("--every", type=int, default=1, help="take every n-th text of the corpus")
    chosen = parser.parse_args()
    source = news() if os.environ.get(TEXT_VARIABLE) else built_in()
    corpus, raw = prepared(source), raw_texts(source, chosen.every)
    megabytes = raw.stat().st_size / 1e6
    rounds = alternate(
        lambda _: megabytes / _seconds("ours", raw, corpus.tokenizer),
        lambda _: megabytes / _seconds("theirs", raw, corpus.tokenizer),
        chosen.rounds,
        "MB/s",
    )
    facts = {"text": source.name, "raw_megabytes": round(megabytes, 1), "processes": available_cores()}
    report("tokenize_throughput", rounds, available_cores(), facts)


def _seconds(side: str, raw: Path, tokenizer: Path) -> float:
    command = [sys.executable, "-m", "comparison.raw_to_tokens", side, str(raw), str(tokenizer)]
    ran = subprocess.run(command, cwd=Path(__file__).parent, check=True, stdout=subprocess.PIPE, text=True)
    return float(ran.stdout.splitlines()[-1])
