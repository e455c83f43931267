"""The worth of an own encoder on biomedical text."""

import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from clozeline.system.content import code_of, fingerprint
from clozeline.system.files import replacing_file
from clozeline.tasks.similarity.matching import BelongingPairs
from clozeline.tasks.task import InputsOf
from clozeline.tasks.training import use_threads
from comparison.biomedical import ADAPTED, RECIPES, Budget, Made, articles, search_parts, search_task
from comparison.frame import Rounds, available_cores, options, paired_difference, report
from comparison.labelled import DATA_VARIABLE, Parts, Sizes, entity_parts, few_label_parts
from comparison.stages import KEPT
from comparison.texts import write_clean
from finetune import in_parts, params_of, run_stage

_LOG = logging.getLogger(__name__)
WORDS = "words alone"
_PUBLISHED = "published"
TASKS = ("tagging", "classification", "search", "search with BM25")
# Tasks whose mean figure is compared; the last one is shown beside them.
_COUNTED = TASKS[:3]
# Learning rate of a published encoder, and of our small one.
_RATES = {"tagging": (2.0e-4, 2.0e-3), "classification": (5.0e-5, 1.0e-3)}


@dataclass(frozen=True)
class Figures:
    """Figures of one encoder and one seed, by task."""

    test: Mapping[str, float]
    validation: Mapping[str, float]
    words: Mapping[str, float]  # the simple method of each task: each word's usual tag, TF-IDF, BM25
    cpu_seconds: float

    @property
    def mean(self) -> float:
        return fmean(self.test[task] for task in _COUNTED)


@dataclass(frozen=True)
class Settings:
    """Settings of the tasks."""

    labelled: int
    test: int
    epochs: int
    num_threads: int

    def parts(self, seed: int) -> dict[str, Parts]:
        """Return the parts of each task, drawn by the seed."""
        few: Sizes = {"test": self.test, "validation": self.labelled // 4, "train": self.labelled}
        paragraphs: Sizes = {"test": self.test, "validation": self.test // 2, "train": 10**6}
        return {
            "tagging": entity_parts(few, seed),
            "classification": few_label_parts("sci-cite", few, seed),
            "search": search_parts(paragraphs, seed),
        }


def main() -> None:
    """The worth of an own encoder on biomedical text: published, adapted, trained from nothing, static, words alone.

    Three tasks judge each encoder. Tagging: diseases in sentences of NCBI disease (F1 of entities). Classification:
    intents of citations in SciCite (accuracy): papers of medicine and computer science, of the labelled sets here the
    nearest to biomedicine. Search: the first sentence of a paragraph of PLOS should find the rest of it among the
    paragraphs of other articles (recall@10 by the vectors as they are, without further training). For the first two
    each encoder is fine-tuned on the same few labels.

    The published encoder is all-MiniLM-L6-v2. Every recipe gets the same number of tokens of the same text: articles of
    PLOS and the training sentences of NCBI disease, without labels; those with replay get 20 % of news in it. The text
    of all articles may be in it, the searched ones included, because text without labels can be had; pairs are made
    from other articles than the searched ones. `own` is 2 layers × 96 with a vocabulary of its own and takes far less
    time for a token; `own_20` gets 20 times as many. `cpu_seconds` are those of the training and its validation,
    without tokenization.

    Each seed draws its own labels and articles and trains anew. The ratio is the mean figure of the three tasks,
    adapted / published. Which recipe counts as adapted is decided by the validation parts, not by the test parts. The
    output is a readable table, then the line. The data lie beside the project, or in the folder that
    CLOZELINE_BENCHMARK_LABELLED names; without them there is nothing to measure. It takes hours. The figures of each
    seed and recipe are kept, so the same command goes on where it was stopped, as long as code and data are the same.
    """
    parser = options(main.__doc__, seeds=3, threads=available_cores(), tokens=200_000, labelled=600, test=600, epochs=4)
    parser.add_argument("names", nargs="*", metavar="RECIPE", help=f"default: all: {', '.join(RECIPES)}")
    chosen = parser.parse_args()
    if unknown := sorted({*chosen.names}.difference(RECIPES)):
        parser.error(f"there is no recipe {unknown[0]!r}; there are: {', '.join(RECIPES)}")
    names = chosen.names or list(RECIPES)
    if _PUBLISHED not in names or not {*ADAPTED}.intersection(names):
        parser.error(f"{_PUBLISHED} and one of {', '.join(ADAPTED)} are needed for the ratio")
    settings = Settings(chosen.labelled, chosen.test, chosen.epochs, chosen.threads)
    found: dict[str, list[Figures]] = {name: [] for name in names}
    if articles():
        for seed in range(chosen.seeds):
            for name, figures in measured(names, settings, chosen.tokens, seed):
                found[name].append(figures)
    else:
        _LOG.warning("there is no biomedical text beside the project, and %s names none", DATA_VARIABLE)
    facts = {"tokens": chosen.tokens, "labelled": chosen.labelled, "test": chosen.test, "epochs": chosen.epochs}
    sys.stdout.write(table(found))
    rounds, told = result(found)
    report("worth", rounds, chosen.threads, facts | told)


def measured(names: Sequence[str], settings: Settings, tokens: int, seed: int) -> Iterator[tuple[str, Figures]]:
    """Yield the figures of each recipe, those of an earlier run if it measured them by the same code."""
    parts = settings.parts(seed)
    files = [
        *code_of(["."]),
        *sorted(Path(__file__).parent.rglob("*.py")),
        *(file for it in parts.values() for file in sorted(it.folder.iterdir())),
    ]
    with TemporaryDirectory() as folder:
        budget = Budget(tokens, seed, settings.num_threads, parts["search"].folder, Path(folder) / "encoders")
        for name in names:
            key = fingerprint({**asdict(settings), "tokens": tokens, "seed": seed, "recipe": name}, files)
            kept = KEPT / "worth" / f"{key}.json"
            if kept.exists():
                figures = Figures(**json.loads(kept.read_bytes()))
            else:
                figures = judged(RECIPES[name](budget), parts, settings, seed, Path(folder) / name)
                with replacing_file(kept) as beside:
                    beside.write_text(json.dumps(asdict(figures)), encoding="utf-8")
            _LOG.info("seed %d, %s: %s", seed, name, figures)
            yield name, figures


def judged(made: Made, parts: Mapping[str, Parts], settings: Settings, seed: int, out: Path) -> Figures:
    """Return the figures of an encoder."""
    test, validation, words = _searched(made, parts["search"].folder, seed, settings.num_threads, out)
    for kind, rates in _RATES.items():
        task = {
            **in_parts(kind),
            "epochs": settings.epochs,
            "optimizer": {"learning_rate": rates[made.is_own]},
            "frozen_layers": made.frozen_layers,
            "num_threads": settings.num_threads,
        }
        figures = run_stage(kind, params_of(task), seed, made.folder, parts[kind].folder, out / kind)
        test[kind], validation[kind] = figures["headline"]["value"], figures["validation_score"]
        words[kind] = figures["headline"]["baseline_value"]
    return Figures(test, validation, words, made.cpu_seconds)


def _searched(
    made: Made, data: Path, seed: int, num_threads: int, out: Path
) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Return the recall of the vectors as they are: test, validation, and that of BM25."""
    params = params_of(search_task(num_threads))
    use_threads(num_threads)
    write_clean(out / "clean", {"train": ["Nothing of this task."]})
    task = BelongingPairs(InputsOf(params, seed, made.folder, data, out / "clean" / "train.parquet"))
    figures = task.test().figures
    test = {"search": figures["recall"], "search with BM25": figures["hybrid_recall"]}
    return test, {"search": task.validation_score()}, {"search": figures["baseline_bm25_recall"]}


def adapted(found: Mapping[str, Sequence[Figures]]) -> str:
    """Return the recipe of `ADAPTED` with the highest mean on the validation parts."""
    names = [name for name in ADAPTED if found.get(name)]
    return max(names, key=lambda name: fmean(fmean(it.validation.values()) for it in found[name]))


def table(found: Mapping[str, Sequence[Figures]]) -> str:
    """Return the means over the seeds, readable."""
    rows = [
        (name, [it.test for it in seeds], [it.cpu_seconds for it in seeds]) for name, seeds in found.items() if seeds
    ]
    if rows:
        rows.insert(0, (WORDS, [it.words for it in found[_PUBLISHED]], [0.0]))
    lines = [f"| encoder | {' | '.join(TASKS)} | CPU seconds |", "|---" * (len(TASKS) + 2) + "|"]
    for name, figures, seconds in rows:
        cells = [f"{fmean(it[task] for it in figures):.3f}" if task in figures[0] else "" for task in TASKS]
        lines.append(f"| {name} | {' | '.join(cells)} | {fmean(seconds):.0f} |")
    return "\n".join(lines) + "\n"


def result(found: Mapping[str, Sequence[Figures]]) -> tuple[Rounds, dict[str, Any]]:
    """Return the adapted encoder beside the published one, and the facts of each recipe."""
    theirs = found[_PUBLISHED]
    best = adapted(found) if theirs else None
    rounds = Rounds(tuple(it.mean for it in found[best]) if best else (), tuple(it.mean for it in theirs))
    return rounds, {"adapted": best, "recipes": {name: _facts(it, theirs) for name, it in found.items() if it}}


def _facts(ours: Sequence[Figures], theirs: Sequence[Figures]) -> dict[str, Any]:
    """Return the figures of each seed, and the difference to the published encoder with its standard error."""
    return {
        "cpu_seconds": [round(it.cpu_seconds, 1) for it in ours],
        **{task: _facts_of([it.test[task] for it in ours], [it.test[task] for it in theirs]) for task in TASKS},
        "words": {task: [round(it.words[task], 4) for it in ours] for task in _COUNTED},
    }


def _facts_of(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, Any]:
    return {"test": [round(value, 4) for value in ours], **paired_difference(ours, theirs)}
