"""What an encoder can be fine-tuned for: a row for each kind. A new kind is a new row and a folder beside this file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from clozeline.params import ClassificationParams, SimilarityParams, ZeroShotParams
from clozeline.tasks.classification.multi_label import MultiLabel
from clozeline.tasks.classification.single_label import SingleLabel
from clozeline.tasks.question_answering.on_contexts import QuestionAnswering
from clozeline.tasks.similarity.belonging import BelongingPairs
from clozeline.tasks.similarity.scored import ScoredPairs
from clozeline.tasks.tagging.on_sentences import Tagging
from clozeline.tasks.task import Task, TaskInputs
from clozeline.tasks.zero_shot.cloze import Cloze
from clozeline.tasks.zero_shot.entailment import Entailment


@dataclass(frozen=True)
class TaskKind:
    """How a kind of task is set up, and what people are told of it (the README's table of tasks is made of this)."""

    prepare: Callable[[TaskInputs], Task]
    answers: str
    data: str
    """What a record is."""
    metric: str
    """The headline first."""
    reference: str
    """The implementation that the metrics agree with, in tests."""
    baseline: str
    """The simple method, then the trivial answer."""


def _classification(inputs: TaskInputs) -> Task:
    assert isinstance(inputs.params, ClassificationParams)
    return MultiLabel(inputs) if inputs.params.multi_label else SingleLabel(inputs)


def _similarity(inputs: TaskInputs) -> Task:
    assert isinstance(inputs.params, SimilarityParams)
    return ScoredPairs(inputs) if inputs.params.score_field else BelongingPairs(inputs)


def _zero_shot(inputs: TaskInputs) -> Task:
    assert isinstance(inputs.params, ZeroShotParams)
    return Cloze(inputs) if inputs.params.entailment is None else Entailment(inputs)


KINDS: Mapping[str, TaskKind] = {
    "classification": TaskKind(
        prepare=_classification,
        answers="one label, or any number of them, for each text or pair of texts",
        data="a text (or two), its label (or several): Parquet, JSON Lines, CSV, TSV; a file or folder a label",
        metric="accuracy, macro-F1, Matthews, F1 of one; of several labels micro-F1, macro-F1, exact match",
        reference="scikit-learn",
        baseline="TF-IDF + logistic regression; largest class",
    ),
    "tagging": TaskKind(
        prepare=Tagging,
        answers="a tag for each word: entities",
        data="words and their tags (IOB1, IOB2, IOBES): CoNLL columns, JSON Lines, Parquet",
        metric="entity F1, precision, recall",
        reference="seqeval",
        baseline="each word's usual tag, no entities",
    ),
    "question_answering": TaskKind(
        prepare=QuestionAnswering,
        answers="the stretch of a context that answers a question, or none",
        data="SQuAD 1.1 or 2.0 JSON; or question, context, answers: JSON Lines, Parquet",
        metric="F1, exact match",
        reference="SQuAD's official script",
        baseline="nearest sentence by TF-IDF, no answer to anything",
    ),
    "similarity": TaskKind(
        prepare=_similarity,
        answers="a vector for each text; the cosine of two says how alike they are",
        data="two texts, scored or belonging together; or docstrings: Parquet, JSON Lines, CSV, TSV",
        metric="of scored pairs Spearman, Pearson; of others recall@k, MRR over all second texts",
        reference="SciPy; every pair compared, one by one",
        baseline="cosine of TF-IDF, the same for all; BM25, a random order",
    ),
    "zero_shot": TaskKind(
        prepare=_zero_shot,
        answers="one label for each text, by the word filled into a prompt, or by entailment; nothing is trained",
        data="a text and its label, to judge by; files as of classification",
        metric="accuracy, macro-F1, Matthews, F1 of one",
        reference="scikit-learn",
        baseline="TF-IDF + logistic regression, which is trained; largest class",
    ),
}
"""Keyed by `kind` in params.yaml; the knobs of each are a row of clozeline.params.finetuning.SECTIONS."""
