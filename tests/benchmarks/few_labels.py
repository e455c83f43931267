"""The finetune stage on few labels, beside a probe of the frozen encoder."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

from comparison.frame import Rounds, available_cores, options, paired_difference, report
from comparison.labelled import DATA_VARIABLE, Parts, few_label_parts, few_label_sets
from comparison.sentences import weights
from finetune import in_parts, params_of, run_stage

_LOG = logging.getLogger(__name__)
# Side → its figure on the test texts in the metrics of the stage.
SIDES = {"ours": "accuracy", "probe": "baseline_probe_accuracy", "tfidf": "baseline_tfidf_accuracy"}
Round = Mapping[str, float]


def main() -> None:
    """Classifiers from few labels: the finetune stage, compared with a linear probe on the same frozen encoder.

    The encoder is all-MiniLM-L6-v2. Each data set that lies beside the project (or in the folder that
    CLOZELINE_BENCHMARK_LABELLED names; without them a generated one) gives 2,000 labelled texts, a tenth of them for
    validation. Each round draws its own texts and is trained with its own seed. The ratio is the accuracy of the model
    that the stage keeps / that of logistic regression on the frozen encoder, both means over the data sets; the goal is
    1. For each set the line has both accuracies of each round, that of TF-IDF, the mean difference with its standard
    error, the CPU seconds of the stage, the learning rate that was kept, and how often no epoch was better than the
    probe, so that the probe was kept.
    """
    parser = options(main.__doc__, seeds=3, threads=available_cores(), epochs=3, train=1800, test=1000)
    parser.add_argument("names", nargs="*", metavar="SET", help="default: every set")
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    chosen = parser.parse_args()
    known = few_label_sets()
    if unknown := sorted({*chosen.names}.difference(known)):
        parser.error(f"no set {', '.join(unknown)} here, but {', '.join(known)}; {DATA_VARIABLE} names others")
    sizes = {"test": chosen.test, "validation": chosen.train // 9, "train": chosen.train}
    recipe = {"epochs": chosen.epochs, "optimizer": {"learning_rate": chosen.learning_rate}}
    knobs = {**recipe, "num_threads": chosen.threads}
    sets = {
        name: [measured(few_label_parts(name, sizes, seed), knobs, seed) for seed in range(chosen.seeds)]
        for name in chosen.names or known
    }
    by_seed = list(zip(*sets.values(), strict=True))
    ours, probe = (tuple(fmean(one[side] for one in of_seed) for of_seed in by_seed) for side in ("ours", "probe"))
    facts = {**sizes, "epochs": chosen.epochs, "learning_rate": chosen.learning_rate}
    told = {name: _facts(rounds) for name, rounds in sets.items()}
    report("finetune_few_labels", Rounds(ours, probe), chosen.threads, {**facts, "sets": told})


def measured(parts: Parts, knobs: Mapping[str, Any], seed: int) -> Round:
    """Return what one round gives. Its CPU time is that of the whole stage, with its baselines and the search for
    contamination; the learning rate is the kept one of those that were tried.
    """
    started = process_time()
    task = params_of({**in_parts("classification"), **knobs})
    with TemporaryDirectory() as folder:
        figures = run_stage("task", task, seed, weights(), parts.folder, Path(folder))
    found = {side: figures[name] for side, name in SIDES.items()}
    found["cpu_seconds"] = process_time() - started
    found |= {"keeps_probe": figures["best_epoch"] == 0, "learning_rate": figures["learning_rate"]}
    _LOG.info("%s, seed %d: %s", parts.data, seed, found)
    return found


def _facts(rounds: Sequence[Round]) -> dict[str, Any]:
    return {
        **{side: [round(one[side], 4) for one in rounds] for side in SIDES},
        **paired_difference([one["ours"] for one in rounds], [one["probe"] for one in rounds]),
        "cpu_seconds": [round(one["cpu_seconds"], 1) for one in rounds],
        "learning_rates": [one["learning_rate"] for one in rounds],
        "probe_kept": sum(one["keeps_probe"] for one in rounds),
    }
