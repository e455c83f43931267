"""Table of the kinds of task, the training of a task over several seeds, and the model card of its result.

A new kind is a new row, and a file or folder beside this file. Of several seeds the best is selected, and their figures
tell how much chance changes them. The card has the task, its data, figures and limits, and the sections of its
encoder's card.
"""

import hashlib
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard

from clozeline.params.tasks import SimilarityParams
from clozeline.records.finetune.task_metrics import OverSeeds, TaskMetrics
from clozeline.tasks import adapters, zero_shot
from clozeline.tasks.classification.texts import MultiLabel, SingleLabel
from clozeline.tasks.question_answering.contexts import QuestionAnswering
from clozeline.tasks.report import TaskReport
from clozeline.tasks.similarity import matching, scored
from clozeline.tasks.tagging.sentences import Tagging
from clozeline.tasks.task import InputsOf, Task, TaskInputs
from clozeline.tasks.training import BestRate, TrainingOutcome, files_of, prepare_training

CARD = "README.md"
_PARTS = ("train", "validation", "test")
# Function that trains with one seed and shows the progress.
Watched = Callable[[BestRate, int], TrainingOutcome]


@dataclass(frozen=True)
class TaskKind:
    """Constructor of a kind of task, and its description, from which the table in docs/tasks.md is made."""

    # Read the data and build the model.
    #
    # Raises: DataError: the data cannot be read, or is too little. ArtifactError: the encoder is missing, or its
    # tokenizer was made for another model. ParamsError: `max_length` is longer than the encoder can read.
    prepare: Callable[[InputsOf[Any]], Task[Any]]
    answers: str
    data: str  # content and file formats of a record
    metric: str  # names of the metrics, the headline metric first
    reference: str  # implementation that the tests compare the metrics with
    baseline: str  # method, then the trivial answer


def _similarity(inputs: InputsOf[SimilarityParams]) -> Task[Any]:
    if inputs.params.read_together:
        return scored.ScoredTogether(inputs)
    return scored.ScoredPairs(inputs) if inputs.params.score_field else matching.BelongingPairs(inputs)


# Kinds of task by `kind` in params.yaml; the knobs of each are a row of clozeline.params.tasks.SECTIONS.
KINDS: Mapping[str, TaskKind] = {
    "classification": TaskKind(
        prepare=lambda inputs: (MultiLabel if inputs.params.multi_label else SingleLabel)(inputs),
        answers="one label, or any number of them, for each text or pair of texts",
        data="a text or pair and its labels: Parquet, JSON Lines, CSV, TSV; or a file or folder for each label",
        metric="accuracy, macro-F1, Matthews, F1 of one class; multi-label: micro-F1, macro-F1, exact match",
        reference="scikit-learn",
        baseline="TF-IDF + logistic regression, and logistic regression on the frozen encoder; largest class",
    ),
    "tagging": TaskKind(
        prepare=Tagging,
        answers="the entities of a text, by a tag for each word",
        data="words and their tags (IOB1, IOB2, IOBES): CoNLL columns, JSON Lines, Parquet",
        metric="entity F1, precision, recall",
        reference="seqeval",
        baseline="each word's usual tag, and logistic regression on the frozen encoder; no entities",
    ),
    "question_answering": TaskKind(
        prepare=QuestionAnswering,
        answers="the span of a context that answers a question, or no answer",
        data="SQuAD 1.1 or 2.0 JSON; or question, context and answers: JSON Lines, Parquet",
        metric="F1, exact match",
        reference="the official SQuAD script",
        baseline="nearest sentence by TF-IDF; no answer to anything",
    ),
    "similarity": TaskKind(
        prepare=_similarity,
        answers="an embedding for each text; the cosine of two is their similarity. Or a score for each pair",
        data="pairs with scores, or pairs that belong together; or docstrings: Parquet, JSON Lines, CSV, TSV",
        metric="scored pairs: Spearman, Pearson; other pairs: recall@k, MRR over all second texts, with BM25 and alone",
        reference="SciPy; a comparison of every pair",
        baseline="scored pairs: cosine of TF-IDF; the same for all. Other pairs: BM25; a random order",
    ),
    "zero_shot": TaskKind(
        prepare=lambda inputs: (zero_shot.Cloze if inputs.params.entailment is None else zero_shot.Entailment)(inputs),
        answers="one label for each text, by a word filled into a prompt or by entailment, without training",
        data="a text and its label, for evaluation and the baseline; formats as for classification",
        metric="accuracy, macro-F1, Matthews, F1 of one class",
        reference="scikit-learn",
        baseline="TF-IDF + logistic regression (trained); largest class",
    ),
}


def card_of(task: str, inputs: TaskInputs, metrics: TaskMetrics) -> ModelCard:
    """Return the card of the model that was fine-tuned for `task`."""
    file = inputs.encoder / CARD
    text = file.read_text(encoding="utf-8") if file.is_file() else "---\nlibrary_name: transformers\n---\n"
    of_encoder = ModelCard(text, ignore_metadata_errors=True)
    of_encoder.data.pop("pipeline_tag")
    sections = {
        "Task": _task(inputs, metrics.model_extra or {}),
        "Figures": _figures(metrics),
        "Limits": _limits(inputs, metrics),
    }
    own = ("\n".join((f"## {heading}", "", *lines)) for heading, lines in sections.items())
    _, heading, inherited = of_encoder.text.partition("\n## ")
    of_encoder.text = "\n\n".join((f"\n# {task}: {inputs.params.kind}", *own)) + f"\n{heading}{inherited}"
    return of_encoder


def _task(inputs: TaskInputs, figures: dict[str, Any]) -> Iterator[str]:
    params = inputs.params
    yield f"- Answers: {KINDS[params.kind].answers}"
    counts = [f"{figures[f'num_{part}']:,} {part}" for part in _PARTS if isinstance(figures.get(f"num_{part}"), int)]
    if counts:
        yield f"- Items: {', '.join(counts)}"
    if params.hub is not None:
        yield f"- Data: hub dataset {params.hub.dataset}, commit {figures.get('hub_commit') or 'unknown'}"
        return
    yield f"- Data: {params.data}; SHA-256 of its files in the order of their paths:"
    yield f"  `{_sha256(inputs.data)}`"


def _sha256(data: Path) -> str:
    digest = hashlib.sha256()
    for path in files_of(data):
        with path.open("rb") as file:
            while block := file.read(2**20):
                digest.update(block)
    return digest.hexdigest()


def _figures(metrics: TaskMetrics) -> Iterator[str]:
    top = metrics.headline
    yield "On the test split, which informed no choice; the interval (95 %) is over other items of the same kind."
    yield ""
    yield f"| method | {top.metric} |"
    yield "|---|---|"
    yield f"| {top.method} | {top.value:.4f} ({top.low:.4f} to {top.high:.4f}) |"
    yield from (f"| {name} | {value:.4f} |" for name, value in top.compared)
    if top.lead_low is not None and top.lead_high is not None:
        yield ""
        yield f"{top.method} - {top.baseline}: {top.lead_low:+.4f} to {top.lead_high:+.4f} (95 %, paired by test item)."
    if (others := top.without_near_duplicates) is not None:
        yield ""
        yield (
            f"Without test items that are near-duplicates of training items: {others.value:.4f} ({others.low:.4f} to "
            f"{others.high:.4f}); {others.baseline} {others.baseline_value:.4f}."
        )
    if seeds := metrics.over_seeds:
        yield ""
        yield f"Over {seeds.num_seeds} seeds: mean {seeds.mean:.4f}, standard deviation {seeds.deviation:.4f}."


def _limits(inputs: TaskInputs, metrics: TaskMetrics) -> Iterator[str]:
    yield f"- The model reads at most {inputs.params.max_length:,} tokens at once."
    yield "- Expect the figures above only for texts and classes like those of the test split."
    if metrics.contaminated_fraction is not None:
        yield f"- {metrics.contaminated_fraction:.1%} of the test texts have a near-duplicate in the pre-training text."
    yield from (f"- Known fault: {fault}." for fault in metrics.faults)


@dataclass(frozen=True)
class Finished:
    """One finished training run with its test report; `forget` removes its checkpoints.

    `task` holds the weights of the best validation pass, with adapters merged.
    """

    seed: int
    task: Task[Any]
    trained: TrainingOutcome
    report: TaskReport
    forget: Callable[[], None]


def over_seeds(best_seed: int, values: Sequence[float]) -> OverSeeds:
    """Return the headline figure on the test split over all seeds. Its spread measures chance, not the model."""
    return OverSeeds(
        num_seeds=len(values),
        best_seed=best_seed,
        mean=statistics.fmean(values),
        deviation=statistics.stdev(values),
        lowest=min(values),
        highest=max(values),
    )


def train_one(inputs: TaskInputs, seed: int, work: Path, run: Watched) -> None:
    """Train from one seed and leave the checkpoint of the finished training, from which `train_each` goes on.

    Raises:
        ArtifactError, DataError, ParamsError, TrainingError: as in `TaskKind.prepare` and `BestValidation.run`.
    """
    _, training = _prepared(inputs, seed, work)
    run(training, seed)


def train_each(inputs: TaskInputs, work: Path, run: Watched) -> Iterator[Finished]:
    """Train from each seed, starting with `inputs.seed`, and yield each finished training; of several processes that
    train together, only the first one tests the models and yields.

    The caller removes the checkpoints of a finished training. Until then, a restarted run resumes from them.

    Raises:
        ArtifactError, DataError, ParamsError, TrainingError: as in `TaskKind.prepare` and `BestValidation.run`.
    """
    for seed in range(inputs.seed, inputs.seed + inputs.params.num_seeds):
        task, training = _prepared(inputs, seed, work)
        trained = run(training, seed)
        if not training.loop.hardware.processes.is_first:
            continue
        adapters.merge(task.model)
        adapters.widen(task.model)
        report = task.test()
        if trained.learning_rate is not None and trained.best.step == 0 and task.fitted is not None:
            report = replace(report, headline=report.headline.model_copy(update={"method": task.fitted}))
        yield Finished(seed, task, trained, report, training.forget)


def _prepared(inputs: TaskInputs, seed: int, work: Path) -> tuple[Task[Any], BestRate]:
    seeded = replace(inputs, seed=seed)
    task = KINDS[inputs.params.kind].prepare(seeded)
    return task, prepare_training(task, seeded, work)


def is_better(one: Finished, other: Finished | None) -> bool:
    """Return whether `one` replaces `other`: a higher validation score does, and any training replaces NaN."""
    if other is None or math.isnan(other.trained.best.validation_score):
        return True
    return one.trained.best.validation_score > other.trained.best.validation_score
