"""Classifiers from few labels: the finetune stage, compared with a linear probe on the same frozen encoder.

The encoder is all-MiniLM-L6-v2. Each data set that lies beside the project (or in the folder that
CLOZELINE_BENCHMARK_LABELLED names; without them a generated one) gives 2,000 labelled texts, a tenth of them for
validation. Each round draws its own texts and is trained with its own seed. The ratio is the accuracy of the model that
the stage keeps / that of logistic regression on the frozen encoder, both means over the data sets; the goal is 1. For
each set the line has both accuracies of each round, that of TF-IDF, the mean difference with its standard error, the
CPU seconds of the stage, the learning rate that was kept, and how often no epoch was better than the probe, so that the
probe was kept.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

from comparison.finetuning import params_of, run_stage
from comparison.frame import Rounds, available_cores, finish, line_of, options, paired_difference
from comparison.labelled import DATA_VARIABLE, Parts, Sizes, few_label_parts, few_label_sets
from comparison.sentences import weights
from comparison.their_tasks import PARTS

_LOG = logging.getLogger(__name__)
SIZES: Sizes = {"test": 1000, "validation": 200, "train": 1800}


@dataclass(frozen=True)
class Round:
    """Accuracies of one data set and seed on its test texts."""

    ours: float
    probe: float
    tfidf: float
    cpu_seconds: float
    """CPU time of the whole stage, with its baselines and the search for contamination."""
    keeps_probe: bool
    learning_rate: float
    """The one that was kept of those that were tried."""


def main() -> None:
    parser = options(__doc__, seeds=3, threads=available_cores(), epochs=3)
    parser.add_argument("names", nargs="*", metavar="SET", help="default: every set")
    parser.add_argument("--train", type=int, default=SIZES["train"], metavar="TEXTS")
    parser.add_argument("--test", type=int, default=SIZES["test"], metavar="TEXTS")
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    chosen = parser.parse_args()
    names = chosen.names or few_label_sets()
    if unknown := sorted({*names}.difference(few_label_sets())):
        parser.error(
            f"no set {', '.join(unknown)} here, but {', '.join(few_label_sets())}; {DATA_VARIABLE} names others"
        )
    sizes = {**SIZES, "train": chosen.train, "validation": chosen.train // 9, "test": chosen.test}
    recipe = {"epochs": chosen.epochs, "optimizer": {"learning_rate": chosen.learning_rate}}
    knobs = {**recipe, "num_threads": chosen.threads}
    sets = {
        name: [measured(few_label_parts(name, sizes, seed), knobs, seed) for seed in range(chosen.seeds)]
        for name in names
    }
    finish(result(sets, chosen.threads, {**sizes, "epochs": chosen.epochs, "learning_rate": chosen.learning_rate}))


def measured(parts: Parts, knobs: Mapping[str, Any], seed: int) -> Round:
    task = {"kind": "classification", "data": "parts", "splits": {part: f"{part}.jsonl" for part in PARTS}}
    started = process_time()
    with TemporaryDirectory() as folder:
        figures = run_stage("task", params_of({**task, **knobs}), seed, weights(), parts.folder, Path(folder))
    found = Round(
        ours=figures["accuracy"],
        probe=figures["baseline_probe_accuracy"],
        tfidf=figures["baseline_tfidf_accuracy"],
        cpu_seconds=process_time() - started,
        keeps_probe=figures["best_epoch"] == 0,
        learning_rate=figures["learning_rate"],
    )
    _LOG.info("%s, seed %d: %s", parts.data, seed, found)
    return found


def result(sets: Mapping[str, Sequence[Round]], num_threads: int, facts: Mapping[str, Any]) -> dict[str, Any]:
    by_seed = list(zip(*sets.values(), strict=True))
    ours, probe = (
        tuple(fmean(getattr(found, side) for found in of_seed) for of_seed in by_seed) for side in ("ours", "probe")
    )
    told = {**facts, "sets": {name: _facts(rounds) for name, rounds in sets.items()}}
    return line_of("finetune_few_labels", Rounds(ours, probe), num_threads, told)


def _facts(rounds: Sequence[Round]) -> dict[str, Any]:
    ours, probe, tfidf = ([round(getattr(it, side), 4) for it in rounds] for side in ("ours", "probe", "tfidf"))
    return {
        "ours": ours,
        "probe": probe,
        "tfidf": tfidf,
        **paired_difference([found.ours for found in rounds], [found.probe for found in rounds]),
        "cpu_seconds": [round(found.cpu_seconds, 1) for found in rounds],
        "learning_rates": [found.learning_rate for found in rounds],
        "probe_kept": sum(found.keeps_probe for found in rounds),
    }
