"""Fine-tuning: beside transformers' scripts, for each seed our stage and theirs on the same files; beside a probe of
the frozen encoder, from few labels; and our table.

The time covers everything that a user waits for: reading files, tokenizing texts, loading and training weights,
answering the test part, saving the model. Ours evaluates on the validation part after each epoch and keeps the best
weights; theirs evaluates once, after the last epoch, as its script does. Ours also measures its baselines, and looks
for test texts in the pre-training text.
"""

import json
import logging
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, variance
from tempfile import TemporaryDirectory
from typing import Any

import torch
from ruamel.yaml import YAML

from clozeline.params.tasks import SECTIONS, FinetuneParams, whole_task
from clozeline.records.finetune.scored_items import f1
from clozeline.stages import finetune as stage
from clozeline.tasks.tagging import sentences
from comparison import labelled, their_tasks
from comparison.frame import Rounds, alternate, available_cores, options, paired_difference, report, write_line
from comparison.labelled import NO_DATA, Item, Parts, Sizes
from comparison.sentences import weights
from comparison.stages import params_tree, write_clean
from comparison.their_tasks import PARTS, Recipe

_LOG = logging.getLogger(__name__)
TABLE = Path(__file__).with_name("finetune_table.yaml")
_HEADER = "| task | train / test | figure | 95 % interval | simple method | trivial answer |\n|---|---|---|---|---|---|"


@dataclass(frozen=True)
class Setup:
    """One benchmark: a kind of task, its data, and the other side's script."""

    kind: str
    metric: str  # the headline of the kind
    parts: Callable[[Sizes], Parts]
    sizes: Sizes
    recipe: Recipe
    # Folder of the parts, weights, recipe → an answer for each test item.
    theirs: Callable[[Path, Path, Recipe], Sequence[Any]]
    # Metric of the answers, computed by the function that judges ours.
    judge: Callable[[Sequence[Item], Sequence[Any]], float]
    num_seeds: int = 3


def classification() -> None:
    """Fine-tuning and evaluation of a sentence classifier, compared with transformers' `Trainer` as in `run_glue.py`.

    Both sides use all-MiniLM-L6-v2 and the sentences of Pang & Lee's polarity set if they lie beside the project (or in
    the folder that CLOZELINE_BENCHMARK_LABELLED names), else generated ones. Texts for training, validation and test,
    epochs, batch, learning rate and seeds are the same; everything else is each side's default. Theirs pads every row
    to `--max_seq_length` 128 (`--pad_to_max_length` is run_glue.py's default), ours to the longest row in batches of
    similar length. A round is one seed, from reading files to a saved model and answers for the test part. The ratio is
    their seconds / ours; the line has the accuracy of each seed, the difference of the means and its standard error.
    """
    _compare("finetune_classification", classification.__doc__)


def tagging() -> None:
    """Fine-tuning and evaluation of an entity tagger, compared with transformers' `Trainer` as in `run_ner.py`.

    Both sides use all-MiniLM-L6-v2 and NCBI disease if it lies beside the project (or in the folder that
    CLOZELINE_BENCHMARK_LABELLED names), evaluated on its development part, else generated sentences. Sentences for
    training, validation and test, epochs, batch, learning rate and seeds are the same; everything else is each side's
    default. Theirs pads to the longest row of a random batch (`--pad_to_max_length` is off in run_ner.py), ours to the
    longest in batches of similar length. So the ratio depends on the lengths: their batches are 56 % padding here, 45 %
    on WNUT 17. A round is one seed, from reading files to a saved model and answers for the test part. The ratio is
    their seconds / ours; the line has the entity F1 of each seed, the difference of the means and its standard error.
    """
    _compare("finetune_tagging", tagging.__doc__)


def qa() -> None:
    """Fine-tuning and evaluation of extractive question answering, compared with `Trainer` as in `run_qa.py`.

    Both sides use all-MiniLM-L6-v2 and the answerable questions of a part of SQuAD 2.0 (as in SQuAD 1.1) if it lies
    beside the project (or in the folder that CLOZELINE_BENCHMARK_LABELLED names), else generated ones. Questions for
    training, validation and test, epochs, batch, learning rate, seeds, and windows of 384 tokens with a stride of 128
    are the same; everything else is each side's default. Theirs pads every window to 384 (`--pad_to_max_length` is
    run_qa.py's default), ours to the longest window in batches of similar length. A model learns little from so few
    questions, so the line also has the figures of no answer to anything and of the nearest sentence on the same part. A
    round is one seed, from reading files to a saved model and answers for the test part. The ratio is their seconds /
    ours; the line has SQuAD's F1 of each seed, the difference of the means and its standard error. It takes about
    twelve minutes on two cores.
    """
    _compare("finetune_qa", qa.__doc__)


def accuracy(items: Sequence[Item], answers: Sequence[str]) -> float:
    return sum(item["label"] == answer for item, answer in zip(items, answers, strict=True)) / len(items)


def entity_f1(items: Sequence[Item], answers: Sequence[Sequence[str]]) -> float:
    return sentences.score([item["ner_tags"] for item in items], answers).f1


def mean_f1(items: Sequence[Item], answers: Sequence[str]) -> float:
    return fmean(f1(item["answers"]["text"], answer) for item, answer in zip(items, answers, strict=True))


SETUPS: Mapping[str, Setup] = {
    "finetune_classification": Setup(
        kind="classification",
        metric="accuracy",
        parts=lambda sizes: labelled.few_label_parts("sentence-polarity", sizes, 0),
        sizes={"test": 600, "validation": 100, "train": 1600},
        recipe=Recipe(epochs=1, batch_size=32, learning_rate=1e-4, max_length=128, seed=0),
        theirs=their_tasks.classified,
        judge=accuracy,
    ),
    "finetune_tagging": Setup(
        kind="tagging",
        metric="f1",
        parts=labelled.entity_parts,
        sizes={"test": 600, "validation": 100, "train": 1200},
        recipe=Recipe(epochs=2, batch_size=32, learning_rate=2e-4, max_length=128, seed=0),
        theirs=their_tasks.tagged,
        judge=entity_f1,
    ),
    "finetune_qa": Setup(
        kind="question_answering",
        metric="f1",
        parts=labelled.question_parts,
        sizes={"test": 120, "validation": 40, "train": 640},
        recipe=Recipe(epochs=1, batch_size=4, learning_rate=3e-4, max_length=384, seed=0),
        theirs=their_tasks.answered,
        judge=mean_f1,
        num_seeds=2,
    ),
}


def _compare(name: str, description: str | None) -> None:
    """Run both sides and write the line."""
    setup, recipe = SETUPS[name], SETUPS[name].recipe
    numbers = {"seeds": setup.num_seeds, "threads": available_cores()}
    parser = options(description, **numbers, epochs=recipe.epochs, batch_size=recipe.batch_size)
    parser.add_argument("--train", type=int, default=setup.sizes["train"], metavar="ITEMS")
    parser.add_argument("--learning-rate", type=float, default=recipe.learning_rate)
    chosen = parser.parse_args()
    given = {key: getattr(chosen, key) for key in ("epochs", "batch_size", "learning_rate")}
    setup = replace(setup, sizes={**setup.sizes, "train": chosen.train}, recipe=replace(recipe, **given))
    parts = setup.parts(setup.sizes)
    sides = Sides(setup, parts, weights(), chosen.threads)
    rounds = alternate(sides.ours, sides.theirs, chosen.seeds, "s")
    facts = {"data": parts.data, "sizes": {part: len(parts.read(part)) for part in PARTS}, **given}
    report(name, rounds, chosen.threads, facts | sides.quality() | sides.beside)


class Sides:
    """Both sides on one set of files; keeps the metric and the CPU time of each seed."""

    def __init__(self, setup: Setup, parts: Parts, encoder: Path, num_threads: int) -> None:
        self._setup, self._parts, self._encoder, self._num_threads = setup, parts, encoder, num_threads
        self._metric: dict[str, list[float]] = {"ours": [], "theirs": []}
        self._cpu_seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
        # Metric of the simple method of the kind, of the fitted head on the frozen encoder, and of the trivial answer,
        # on the same test part.
        self.beside: dict[str, float] = {}
        self._num_probe_kept = 0

    def ours(self, seed: int) -> float:
        """Seconds of one round."""
        params = our_params(self._setup, self._num_threads)
        with TemporaryDirectory() as folder:
            run = partial(run_stage, "task", params, seed, self._encoder, self._parts.folder, Path(folder))
            figures, seconds = self._timed("ours", run)
        for part in PARTS:
            assert figures[f"num_{part}"] == len(self._parts.read(part)), "both sides learn from the same items"
        headline = figures["headline"]
        assert headline["metric"] == self._setup.metric
        names = {"simple_method": "baseline_value", "trivial_answer": "trivial_value"}
        self.beside = {name: round(headline[value], 4) for name, value in names.items()}
        self.beside |= {method["name"]: round(method["value"], 4) for method in headline["beside"]}
        self._num_probe_kept += figures["best_epoch"] == 0
        self._told("ours", headline["value"])
        return seconds

    def theirs(self, seed: int) -> float:
        """Seconds of one round."""
        torch.set_num_threads(self._num_threads)
        recipe = replace(self._setup.recipe, seed=seed)
        run = partial(self._setup.theirs, self._parts.folder, self._encoder, recipe)
        answers, seconds = self._timed("theirs", run)
        self._told("theirs", self._setup.judge(self._parts.read("test"), answers))
        return seconds

    def quality(self) -> dict[str, Any]:
        """Return the metric of each seed, the difference of the means (ours - theirs), and its standard error."""
        ours, theirs = self._metric["ours"], self._metric["theirs"]
        difference = fmean(ours) - fmean(theirs)
        error = math.sqrt((variance(ours) + variance(theirs)) / len(ours)) if len(ours) > 1 else None
        return {
            "metric": self._setup.metric,
            **{f"{side}_metric": [round(value, 4) for value in values] for side, values in self._metric.items()},
            "metric_difference": round(difference, 4),
            "standard_error": error and round(error, 4),
            "probe_kept": self._num_probe_kept,
            "not_lower": None if error is None else difference >= -error,
            "cpu_seconds": {side: [round(value, 1) for value in values] for side, values in self._cpu_seconds.items()},
        }

    def _timed(self, side: str, run: Callable[[], Any]) -> tuple[Any, float]:
        started, started_cpu = time.perf_counter(), time.process_time()
        found = run()
        self._cpu_seconds[side].append(time.process_time() - started_cpu)
        return found, time.perf_counter() - started

    def _told(self, side: str, value: float) -> None:
        self._metric[side].append(value)
        _LOG.info("%s: %s %.4f", side, self._setup.metric, value)


def our_params(setup: Setup, num_threads: int) -> FinetuneParams:
    """Return the params of a task with this recipe; all other values are those of params.yaml."""
    recipe = setup.recipe
    given = {"epochs": recipe.epochs, "batch_size": recipe.batch_size, "max_length": recipe.max_length}
    given |= {"stride": their_tasks.STRIDE} if setup.kind == "question_answering" else {}
    optimizer = {"learning_rate": recipe.learning_rate}
    return params_of({**in_parts(setup.kind), **given, "optimizer": optimizer, "num_threads": num_threads})


def in_parts(kind: str) -> dict[str, Any]:
    """Return a task over the files of `Parts`, written as under `finetune` in params.yaml."""
    return {"kind": kind, "data": "parts", "splits": {part: f"{part}.jsonl" for part in PARTS}}


def params_of(task: Mapping[str, Any]) -> FinetuneParams:
    """Return the params of a task, written as under `finetune` in params.yaml, completed by the defaults there."""
    whole = whole_task(task, params_tree({})["finetune_defaults"])
    return SECTIONS[task["kind"]].model_validate(whole)


def run_stage(name: str, params: FinetuneParams, seed: int, encoder: Path, data: Path, out: Path) -> dict[str, Any]:
    """Run the stage with all outputs in `out`; return the content of metrics/finetune/<task>.json."""
    seen = write_clean(out / "clean", {"train": ["Nothing of this task."]})
    files = {"out": "model", "metrics": "metrics.json", "examples": "examples", "work": "work"}
    paths = {key: out / file for key, file in files.items()}
    paths |= {table: out / f"{table}.csv" for table in ("curve", "validation", "confusion", "classes")}
    stage.run(
        params, seed=seed, task=name, encoder=encoder, data=data, pretraining_text=seen / "train.parquet", **paths
    )
    figures: dict[str, Any] = json.loads((out / "metrics.json").read_text(encoding="utf-8"))
    return figures


# Side of `few_labels` → its figure on the test texts in the metrics of the stage.
FEW_SIDES = {"ours": "accuracy", "probe": "baseline_probe_accuracy", "tfidf": "baseline_tfidf_accuracy"}


def few_labels() -> None:
    """Classifiers from few labels: the finetune stage, compared with a linear probe on the same frozen encoder.

    The encoder is all-MiniLM-L6-v2. Each data set that lies beside the project (or in the folder that
    CLOZELINE_BENCHMARK_LABELLED names; without them a generated one) gives 2,000 labelled texts, a tenth of them for
    validation. Each round draws its own texts and is trained with its own seed. The ratio is the accuracy of the model
    that the stage keeps / that of logistic regression on the frozen encoder, both means over the data sets; the goal is
    1. For each set the line has both accuracies of each round, that of TF-IDF, the mean difference with its standard
    error, the CPU seconds of the stage, the learning rate that was kept, and how often no epoch was better than the
    probe, so that the probe was kept.
    """
    numbers = {"seeds": 3, "threads": available_cores(), "epochs": 3, "train": 1800, "test": 1000}
    parser = options(few_labels.__doc__, labelled.few_label_sets(), **numbers)
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    chosen = parser.parse_args()
    sizes = {"test": chosen.test, "validation": chosen.train // 9, "train": chosen.train}
    recipe = {"epochs": chosen.epochs, "optimizer": {"learning_rate": chosen.learning_rate}}
    knobs = {**recipe, "num_threads": chosen.threads}
    sets = {
        name: [_of_few(labelled.few_label_parts(name, sizes, seed), knobs, seed) for seed in range(chosen.seeds)]
        for name in chosen.names
    }
    by_seed = list(zip(*sets.values(), strict=True))
    ours, probe = (tuple(fmean(one[side] for one in of_seed) for of_seed in by_seed) for side in ("ours", "probe"))
    facts = {**sizes, "epochs": chosen.epochs, "learning_rate": chosen.learning_rate}
    told = {name: _facts_of_few(rounds) for name, rounds in sets.items()}
    report("finetune_few_labels", Rounds(ours, probe), chosen.threads, {**facts, "sets": told})


def _of_few(parts: Parts, knobs: Mapping[str, Any], seed: int) -> Mapping[str, float]:
    """Return what one round gives. Its CPU time is that of the whole stage, with its baselines and the search for
    contamination; the learning rate is the kept one of those that were tried.
    """
    started = time.process_time()
    task = params_of({**in_parts("classification"), **knobs})
    with TemporaryDirectory() as folder:
        figures = run_stage("task", task, seed, weights(), parts.folder, Path(folder))
    found = {side: figures[name] for side, name in FEW_SIDES.items()}
    found["cpu_seconds"] = time.process_time() - started
    found |= {"keeps_probe": figures["best_epoch"] == 0, "learning_rate": figures["learning_rate"]}
    _LOG.info("%s, seed %d: %s", parts.data, seed, found)
    return found


def _facts_of_few(rounds: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    return {
        **{side: [round(one[side], 4) for one in rounds] for side in FEW_SIDES},
        **paired_difference([one["ours"] for one in rounds], [one["probe"] for one in rounds]),
        "cpu_seconds": [round(one["cpu_seconds"], 1) for one in rounds],
        "learning_rates": [one["learning_rate"] for one in rounds],
        "probe_kept": sum(one["keeps_probe"] for one in rounds),
    }


def table() -> None:
    """Quality of each kind of task on well-known data, fine-tuned from all-MiniLM-L6-v2 by the stage itself.

    The tasks are in finetune_table.yaml, written as under `finetune` in params.yaml. The data lie beside the project,
    or in the folder that CLOZELINE_BENCHMARK_LABELLED names; without them there is nothing to measure. Arguments select
    tasks by name. The output is a readable table, each figure with its 95 % interval beside a simple method and a
    trivial answer, then one line of JSON. There is no other side. A task takes about ten minutes on one core; sts2016
    takes one, squad2_subset fifty.
    """
    tasks: Mapping[str, Mapping[str, Any]] = YAML(typ="safe").load(TABLE)
    chosen = options(table.__doc__, list(tasks), threads=available_cores()).parse_args()
    folder = labelled.known_data()
    figures = {}
    for name in chosen.names if folder else ():
        data = folder / tasks[name]["data"]
        params = params_of({**tasks[name], "data": str(data), "num_threads": chosen.threads})
        with TemporaryDirectory() as out:
            figures[name] = run_stage(name, params, params_tree({})["seed"], weights(), data, Path(out))
    if folder is None:
        _LOG.warning(NO_DATA)
    sys.stdout.write("\n".join([_HEADER, *(row(name, of) for name, of in figures.items())]) + "\n")
    write_line({"name": "finetune_table", "tasks": figures}, chosen.threads)


def row(name: str, figures: Mapping[str, Any]) -> str:
    """Return a line of the table."""
    said = figures["headline"]
    cells = [
        name,
        f"{figures['num_train']:,} / {figures['num_test']:,}",
        f"{said['metric']} **{said['value']:.3f}**",
        f"{said['low']:.3f} to {said['high']:.3f}",
        *(f"{said[method]}: {said[f'{method}_value']:.3f}" for method in ("baseline", "trivial")),
    ]
    return f"| {' | '.join(cells)} |"
