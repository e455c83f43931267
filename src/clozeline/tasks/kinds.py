"""Table of the kinds of task. A new kind is a new row, and a folder beside this file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from clozeline.params import ClassificationParams, SimilarityParams, ZeroShotParams
from clozeline.tasks.classification.multi_label import MultiLabel
from clozeline.tasks.classification.single_label import SingleLabel
from clozeline.tasks.question_answering.on_contexts import QuestionAnswering
from clozeline.tasks.similarity.belonging import BelongingPairs
from clozeline.tasks.similarity.scored import ScoredPairs
from clozeline.tasks.similarity.together import ScoredTogether
from clozeline.tasks.tagging.on_sentences import Tagging
from clozeline.tasks.task import InputsOf, Task
from clozeline.tasks.zero_shot.cloze import Cloze
from clozeline.tasks.zero_shot.entailment import Entailment


@dataclass(frozen=True)
class TaskKind:
    """Constructor of a kind of task, and its description, from which the table in docs/tasks.md is made."""

    prepare: Callable[[InputsOf[Any]], Task]
    """Read the data and build the model.

    Raises:
        DataError: the data cannot be read, or is too little.
        ArtifactError: the encoder is missing, or its tokenizer was made for another model.
        ParamsError: `max_length` is longer than the encoder can read.
    """
    answers: str
    data: str
    """Content and file formats of a record."""
    metric: str
    """Names of the metrics, the headline metric first."""
    reference: str
    """Reference implementation that the tests compare the metrics with."""
    baseline: str
    """Baseline method, then the trivial answer."""


def _classification(inputs: InputsOf[ClassificationParams]) -> Task:
    return MultiLabel(inputs) if inputs.params.multi_label else SingleLabel(inputs)


def _similarity(inputs: InputsOf[SimilarityParams]) -> Task:
    if inputs.params.read_together:
        return ScoredTogether(inputs)
    return ScoredPairs(inputs) if inputs.params.score_field else BelongingPairs(inputs)


def _zero_shot(inputs: InputsOf[ZeroShotParams]) -> Task:
    return Cloze(inputs) if inputs.params.entailment is None else Entailment(inputs)


KINDS: Mapping[str, TaskKind] = {
    "classification": TaskKind(
        prepare=_classification,
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
        prepare=_zero_shot,
        answers="one label for each text, by a word filled into a prompt or by entailment, without training",
        data="a text and its label, for evaluation and the baseline; formats as for classification",
        metric="accuracy, macro-F1, Matthews, F1 of one class",
        reference="scikit-learn",
        baseline="TF-IDF + logistic regression (trained); largest class",
    ),
}
"""Kinds of task by `kind` in params.yaml; the knobs of each are a row of clozeline.params.finetuning.SECTIONS."""
