"""The frame of the benchmarks of fine-tuning: for each seed our stage and a script of transformers, on the same files.

The time covers everything that a user waits for: reading files, tokenizing texts, loading and training weights,
answering the test part, saving the model. Ours evaluates on the validation part after each epoch and keeps the best
weights; theirs evaluates once, after the last epoch, as its script does. Ours also measures its baselines, and looks
for test texts in the pre-training text.
"""

import argparse
import json
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, variance
from tempfile import TemporaryDirectory
from typing import Any

import torch

from clozeline.params.pretraining import laid_over
from clozeline.params.tasks import SECTIONS, FinetuneParams, whole_task
from clozeline.stages import finetune
from comparison.frame import alternate, available_cores, options, report
from comparison.labelled import Item, Parts, Sizes
from comparison.sentences import weights
from comparison.stages import params_tree
from comparison.texts import write_clean
from comparison.their_tasks import PARTS, Recipe

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Setup:
    """One benchmark: a kind of task, its data, and the other side's script."""

    name: str
    kind: str
    metric: str
    """The headline of the kind."""
    parts: Callable[[Sizes], Parts]
    sizes: Sizes
    recipe: Recipe
    theirs: Callable[[Path, Path, Recipe], Sequence[Any]]
    """Folder of the parts, weights, recipe → an answer for each test item."""
    judge: Callable[[Sequence[Item], Sequence[Any]], float]
    """Metric of the answers, computed by the function that judges ours."""
    knobs: Mapping[str, Any] = field(default_factory=dict)
    """Keys of our task, in addition to the recipe."""
    num_seeds: int = 3


def compare(setup: Setup, description: str | None) -> None:
    """Run both sides and write the line."""
    parser = options(
        description,
        seeds=setup.num_seeds,
        threads=available_cores(),
        epochs=setup.recipe.epochs,
        batch_size=setup.recipe.batch_size,
    )
    parser.add_argument("--train", type=int, default=setup.sizes["train"], metavar="ITEMS")
    parser.add_argument("--learning-rate", type=float, default=setup.recipe.learning_rate)
    chosen = parser.parse_args()
    setup = changed(setup, chosen)
    encoder, parts = weights(), setup.parts(setup.sizes)
    sides = Sides(setup, parts, encoder, chosen.threads)
    rounds = alternate(sides.ours, sides.theirs, chosen.seeds, "s")
    facts = {
        "data": parts.data,
        "sizes": {part: len(parts.read(part)) for part in PARTS},
        "epochs": setup.recipe.epochs,
        "batch_size": setup.recipe.batch_size,
        "learning_rate": setup.recipe.learning_rate,
    }
    report(setup.name, rounds, chosen.threads, facts | sides.quality() | sides.beside)


def changed(setup: Setup, chosen: argparse.Namespace) -> Setup:
    """Return the benchmark with the recipe of the command line, for both sides."""
    recipe = replace(
        setup.recipe, epochs=chosen.epochs, batch_size=chosen.batch_size, learning_rate=chosen.learning_rate
    )
    return replace(setup, sizes={**setup.sizes, "train": chosen.train}, recipe=recipe)


class Sides:
    """Both sides on one set of files; keeps the metric and the CPU time of each seed."""

    def __init__(self, setup: Setup, parts: Parts, encoder: Path, num_threads: int) -> None:
        self._setup, self._parts, self._encoder, self._num_threads = setup, parts, encoder, num_threads
        self._metric: dict[str, list[float]] = {"ours": [], "theirs": []}
        self._cpu_seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
        self.beside: dict[str, float] = {}
        """Metric of the simple method of the kind, of the fitted head on the frozen encoder, and of the trivial answer,
        on the same test part."""
        self._num_probe_kept = 0

    def ours(self, seed: int) -> float:
        """Seconds of one round."""
        params = our_params(self._setup, self._num_threads)
        figures: dict[str, Any] = {}
        with TemporaryDirectory() as folder:
            of_stage = (params, seed, self._encoder, self._parts.folder, Path(folder))
            seconds = self._timed("ours", lambda: figures.update(run_stage("task", *of_stage)))
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
        answers: list[Any] = []
        run = self._setup.theirs
        seconds = self._timed("theirs", lambda: answers.extend(run(self._parts.folder, self._encoder, recipe)))
        self._told("theirs", self._setup.judge(self._parts.read("test"), answers))
        return seconds

    def quality(self) -> dict[str, Any]:
        """Return the metric of each seed, the difference of the means (ours - theirs), and its standard error."""
        ours, theirs = self._metric["ours"], self._metric["theirs"]
        difference = fmean(ours) - fmean(theirs)
        error = math.sqrt((variance(ours) + variance(theirs)) / len(ours)) if len(ours) > 1 else math.nan
        return {
            "metric": self._setup.metric,
            "ours_metric": [round(value, 4) for value in ours],
            "theirs_metric": [round(value, 4) for value in theirs],
            "metric_difference": round(difference, 4),
            "standard_error": round(error, 4) if len(ours) > 1 else None,
            "probe_kept": self._num_probe_kept,
            "not_lower": difference >= -error if len(ours) > 1 else None,
            "cpu_seconds": {side: [round(value, 1) for value in values] for side, values in self._cpu_seconds.items()},
        }

    def _timed(self, side: str, run: Callable[[], object]) -> float:
        started, started_cpu = time.perf_counter(), time.process_time()
        run()
        self._cpu_seconds[side].append(time.process_time() - started_cpu)
        return time.perf_counter() - started

    def _told(self, side: str, value: float) -> None:
        self._metric[side].append(value)
        _LOG.info("%s: %s %.4f", side, self._setup.metric, value)


def our_params(setup: Setup, num_threads: int) -> FinetuneParams:
    """Return the params of a task with this recipe; all other values are those of params.yaml."""
    recipe = setup.recipe
    task = {
        "kind": setup.kind,
        "data": "parts",
        "splits": {part: f"{part}.jsonl" for part in PARTS},
        "epochs": recipe.epochs,
        "batch_size": recipe.batch_size,
        "max_length": recipe.max_length,
        "optimizer": {"learning_rate": recipe.learning_rate},
        "num_threads": num_threads,
    }
    return params_of(laid_over(task, setup.knobs))


def params_of(task: Mapping[str, Any]) -> FinetuneParams:
    """Return the params of a task, written as under `finetune` in params.yaml, completed by the defaults there."""
    whole = whole_task(task, params_tree({})["finetune_defaults"])
    return SECTIONS[task["kind"]].model_validate(whole)


def run_stage(name: str, params: FinetuneParams, seed: int, encoder: Path, data: Path, out: Path) -> dict[str, Any]:
    """Run the stage with all outputs in `out`; return the content of metrics/finetune/<task>.json."""
    write_clean(out / "clean", {"train": ["Nothing of this task."]})
    tables = {name: out / f"{name}.csv" for name in ("curve", "validation", "confusion", "classes")}
    finetune.run(
        params,
        seed=seed,
        task=name,
        encoder=encoder,
        data=data,
        pretraining_text=out / "clean" / "train.parquet",
        out=out / "model",
        metrics=out / "metrics.json",
        examples=out / "examples",
        work=out / "work",
        **tables,
    )
    figures: dict[str, Any] = json.loads((out / "metrics.json").read_text(encoding="utf-8"))
    return figures
