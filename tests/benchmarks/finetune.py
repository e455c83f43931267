"""Fine-tuning beside transformers' scripts: for each seed our stage and theirs, on the same files; and our table.

The time covers everything that a user waits for: reading files, tokenizing texts, loading and training weights,
answering the test part, saving the model. Ours evaluates on the validation part after each epoch and keeps the best
weights; theirs evaluates once, after the last epoch, as its script does. Ours also measures its baselines, and looks
for test texts in the pre-training text.
"""

import argparse
import json
import logging
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean, variance
from tempfile import TemporaryDirectory
from typing import Any

import torch
from ruamel.yaml import YAML

from clozeline.params.pretraining import laid_over
from clozeline.params.tasks import SECTIONS, FinetuneParams, whole_task
from clozeline.records.finetune.scored_items import f1
from clozeline.stages import finetune as stage
from clozeline.tasks.tagging import sentences
from comparison import labelled, their_tasks
from comparison.frame import alternate, available_cores, describe_machine, options, report
from comparison.labelled import Item, Parts, Sizes
from comparison.sentences import weights
from comparison.stages import params_tree
from comparison.texts import write_clean
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
    knobs: Mapping[str, Any] = field(default_factory=dict)  # keys of our task, in addition to the recipe
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
        parts=labelled.polarity_parts,
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
        knobs={"stride": their_tasks.STRIDE},
        num_seeds=2,
    ),
}


def _compare(name: str, description: str | None) -> None:
    """Run both sides and write the line."""
    setup = SETUPS[name]
    recipe, cores = setup.recipe, available_cores()
    numbers = {"seeds": setup.num_seeds, "threads": cores, "epochs": recipe.epochs, "batch_size": recipe.batch_size}
    parser = options(description, **numbers)
    parser.add_argument("--train", type=int, default=setup.sizes["train"], metavar="ITEMS")
    parser.add_argument("--learning-rate", type=float, default=recipe.learning_rate)
    chosen = parser.parse_args()
    setup = changed(setup, chosen)
    parts = setup.parts(setup.sizes)
    sides = Sides(setup, parts, weights(), chosen.threads)
    rounds = alternate(sides.ours, sides.theirs, chosen.seeds, "s")
    facts = {
        "data": parts.data,
        "sizes": {part: len(parts.read(part)) for part in PARTS},
        "epochs": chosen.epochs,
        "batch_size": chosen.batch_size,
        "learning_rate": chosen.learning_rate,
    }
    report(name, rounds, chosen.threads, facts | sides.quality() | sides.beside)


def changed(setup: Setup, chosen: argparse.Namespace) -> Setup:
    """Return the benchmark with the recipe of the command line, for both sides."""
    given = {name: getattr(chosen, name) for name in ("epochs", "batch_size", "learning_rate")}
    sizes = {**setup.sizes, "train": chosen.train}
    return replace(setup, sizes=sizes, recipe=replace(setup.recipe, **given))


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
    optimizer = {"learning_rate": recipe.learning_rate}
    task = {**in_parts(setup.kind), **given, "optimizer": optimizer, "num_threads": num_threads}
    return params_of(laid_over(task, setup.knobs))


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


def table() -> None:
    """Quality of each kind of task on well-known data, fine-tuned from all-MiniLM-L6-v2 by the stage itself.

    The tasks are in finetune_table.yaml, written as under `finetune` in params.yaml. The data lie beside the project,
    or in the folder that CLOZELINE_BENCHMARK_LABELLED names; without them there is nothing to measure. Arguments select
    tasks by name. The output is a readable table, each figure with its 95 % interval beside a simple method and a
    trivial answer, then one line of JSON. There is no other side. A task takes about ten minutes on one core; sts2016
    takes one, squad2_subset fifty.
    """
    tasks: Mapping[str, Mapping[str, Any]] = YAML(typ="safe").load(TABLE)
    parser = options(table.__doc__, threads=available_cores())
    parser.add_argument("names", nargs="*", metavar="TASK", help=f"of: {', '.join(tasks)}")
    chosen = parser.parse_args()
    if unknown := [name for name in chosen.names if name not in tasks]:
        parser.error(f"there is no task {unknown[0]!r}; there are: {', '.join(tasks)}")
    folder = labelled.labelled()
    if folder is None:
        _LOG.warning("there is no labelled data beside the project, and CLOZELINE_BENCHMARK_LABELLED names none")
    names = (chosen.names or list(tasks)) if folder else []
    figures = {name: measured(name, tasks[name], chosen.threads) for name in names}
    sys.stdout.write("\n".join([_HEADER, *(row(name, of) for name, of in figures.items())]) + "\n")
    line = {"name": "finetune_table", "tasks": figures, "machine": describe_machine(chosen.threads)}
    sys.stdout.write(json.dumps(line) + "\n")


def measured(name: str, task: Mapping[str, Any], num_threads: int) -> dict[str, Any]:
    """Return the content of metrics/finetune/<task>.json."""
    folder = labelled.labelled()
    assert folder is not None
    params = params_of({**task, "data": str(folder / task["data"]), "num_threads": num_threads})
    with TemporaryDirectory() as out:
        return run_stage(name, params, params_tree({})["seed"], weights(), folder / task["data"], Path(out))


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
