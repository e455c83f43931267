"""From raw text to tokens that can be trained on, in MB of raw text a second, against `datasets` as run_mlm.py uses it.

One file of JSON Lines (the built-in corpus, or what CLOZELINE_BENCHMARK_TEXT names), one tokenizer that exists already
(neither side trains one), the same number of processes, a fresh process and an empty cache for each run; the clock
starts when the imports are done. Ours is preprocess and tokenize: it reads, mends and normalizes text, drops exact and
near duplicates, splits by document, tokenizes training and validation parts, and writes shards. Theirs is
`load_dataset("json")`, `map` to tokens and `map` to full rows: it cleans nothing and drops nothing. So ours does more
for every byte, tokenizes somewhat less text, the duplicates and the holdout part being gone, and the ratio says
nothing about the two tokenizing alone.
"""

import argparse
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from comparison.alternation import Comparison, alternate, finish, report_progress
from comparison.machine import available_cores
from comparison.texts import TEXT_VARIABLE, built_in, news, prepared, raw_texts

_LOG = logging.getLogger(__name__)
_MAX_LENGTH = 128


def main() -> None:
    report_progress()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--every", type=int, default=1, help="take every n-th text of the corpus")
    parser.add_argument("--side", nargs=3, metavar=("SIDE", "RAW", "TOKENIZER"), help="what main starts for one run")
    chosen = parser.parse_args()
    if chosen.side:
        side, raw, tokenizer = chosen.side
        sys.stdout.write(f"{SIDES[side](Path(raw), Path(tokenizer))}\n")
        return
    source = news() if os.environ.get(TEXT_VARIABLE) else built_in()
    corpus, raw = prepared(source), raw_texts(source, chosen.every)
    megabytes = raw.stat().st_size / 1e6
    rounds = alternate(
        lambda _: megabytes / _seconds("ours", raw, corpus.tokenizer),
        lambda _: megabytes / _seconds("theirs", raw, corpus.tokenizer),
        chosen.rounds,
        "MB/s",
    )
    finish(
        Comparison(
            name="tokenize_throughput",
            unit="MB of raw text/s",
            rounds=rounds,
            higher_is_better=True,
            goal=3.0,
            num_threads=available_cores(),
            facts={"text": source.name, "raw_megabytes": round(megabytes, 1), "processes": available_cores()},
        )
    )


def _seconds(side: str, raw: Path, tokenizer: Path) -> float:
    command = [sys.executable, __file__, "--side", side, str(raw), str(tokenizer)]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])


def ours_seconds(raw: Path, tokenizer: Path) -> float:
    """Stages preprocess and tokenize, called as dvc.yaml's processes call them, imports left out."""
    from clozeline.params import Params
    from clozeline.stages import preprocess, tokenize
    from comparison.stages import params_tree

    changes = {
        "preprocess": {"source": {"kind": "files", "text_field": "text"}},
        "tokenize": {"algorithm": "existing", "existing": str(tokenizer)},
    }
    params = Params.model_validate(params_tree(changes))
    with TemporaryDirectory() as name:
        folder = Path(name)
        started = time.perf_counter()
        clean = folder / "clean"
        preprocess.run(params.preprocess, seed=0, source=raw, out=clean, metrics=folder / "preprocess.json")
        _LOG.info("ours: preprocess took %.1f s", time.perf_counter() - started)
        out, metrics = folder / "tokens", folder / "tokenize.json"
        tokenize.run(params.tokenize, clean=clean, tokenizer=folder / "tokenizer", out=out, metrics=metrics)
        seconds = time.perf_counter() - started
        _LOG.info("ours: both stages took %.1f s", seconds)
        return seconds


def theirs_seconds(raw: Path, tokenizer: Path) -> float:
    """`load_dataset`, then both maps of run_mlm, with `--preprocessing_num_workers` at the number of cores."""
    import datasets

    from comparison import run_mlm

    opened = run_mlm.open_tokenizer(tokenizer)
    datasets.disable_progress_bars()
    with TemporaryDirectory() as cache:
        started = time.perf_counter()
        texts = datasets.load_dataset("json", data_files=str(raw), split="train", cache_dir=cache)
        _LOG.info("theirs: load_dataset took %.1f s", time.perf_counter() - started)
        rows = run_mlm.grouped(texts, opened, _MAX_LENGTH, available_cores())
        seconds = time.perf_counter() - started
        _LOG.info("theirs: everything took %.1f s, %s rows", seconds, f"{len(rows):,}")
        return seconds


SIDES: dict[str, Callable[[Path, Path], float]] = {"ours": ours_seconds, "theirs": theirs_seconds}


if __name__ == "__main__":
    main()
