"""One label for each text.

Shapes: T texts, B rows of a batch, L longest row, C classes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from clozeline.model import classifier, heads
from clozeline.model.encoded import TargetedBatch
from clozeline.params import ClassificationParams
from clozeline.tasks.classification.baselines import LabelledTexts, largest_class, tfidf_logistic_regression
from clozeline.tasks.classification.scores import Classes, score
from clozeline.tasks.classification.selection import Example, Labelled, SelectionCount, select
from clozeline.tasks.rows import Ids, TextRows, sorted_batches, training_batches
from clozeline.tasks.sources import records_of
from clozeline.tasks.splitting import count_seen
from clozeline.tasks.task import Headline, ShownItem, TaskInputs, TaskReport, shown
from clozeline.tokens.tokenizer import OpenTokenizer
from clozeline.training.state import Batch

_MEASURED_TOGETHER = 4
"""A batch that is only measured may be so many times larger: it needs no gradients."""


@dataclass(frozen=True)
class ClassifiedRows:
    """One part of the task, as text and as tokens."""

    texts: Sequence[str]
    rows: TextRows
    class_T: Classes

    @classmethod
    def encode(cls, examples: Sequence[Example], labels: Sequence[str], opened: OpenTokenizer, max_length: int) -> Self:
        texts = [example.text for example in examples]
        place = {label: place for place, label in enumerate(labels)}
        class_T = np.array([place[example.label] for example in examples], dtype=np.int64)
        return cls(texts, TextRows.encode(texts, opened, max_length), class_T)

    def batch(self, rows_B: Ids) -> TargetedBatch:
        return TargetedBatch(self.rows.encoded(rows_B), torch.from_numpy(self.class_T[rows_B]))

    @property
    def as_texts(self) -> LabelledTexts:
        return LabelledTexts(self.texts, self.class_T)


@dataclass(frozen=True)
class Figures:
    """metrics/finetune/<task>.json; shares are 0-1, and of the test part."""

    accuracy: float
    accuracy_low: float
    accuracy_high: float
    macro_f1: float
    baseline_tfidf_accuracy: float
    baseline_tfidf_macro_f1: float
    majority_accuracy: float
    num_classes: int
    num_train: int
    num_validation: int
    num_test: int
    num_truncated_train: int
    num_truncated_test: int
    num_test_seen_in_pretraining: int
    """Test texts that the encoder was pre-trained on, up to case and white space."""
    records: SelectionCount


class Classification:
    """Single-label classification by a head on the mean of the last hidden states."""

    def __init__(self, inputs: TaskInputs) -> None:
        """Read the data and build the model.

        Raises:
            DataError: the data cannot be read, or there is too little of it.
            ArtifactError: the encoder is missing, or its tokenizer was made for another model.
            ParamsError: `max_length` is longer than the encoder can read.
        """
        params = inputs.params
        assert isinstance(params, ClassificationParams)
        self._inputs = inputs
        fields = {"text_field": params.text_field, "label_field": params.label_field}
        records = records_of(params, inputs.data, fields)
        self._selection = select((Labelled.of(record, part, params) for part, record in records), params)
        self._labels = self._selection.labels
        self.model = classifier.build(inputs.encoder, self._labels, inputs.seed)
        opened = OpenTokenizer.open(inputs.encoder)
        heads.check_fit(self.model, inputs.encoder, vocab_size=opened.vocab_size, max_length=params.max_length)
        self._train, self._validation, self._test = (
            ClassifiedRows.encode(part, self._labels, opened, params.max_length)
            for part in (self._selection.train, self._selection.validation, self._selection.test)
        )
        self.batches_per_epoch = -(-len(self._train.rows) // params.batch_size)

    def batches_from(self, epoch: int, index: int) -> Iterator[Batch[TargetedBatch]]:
        length_T, batch_size = self._train.rows.length_T, self._inputs.params.batch_size
        return training_batches(length_T, batch_size, self._inputs.seed, epoch, index, self._train.batch)

    def loss_sum(self, inputs: TargetedBatch) -> Tensor:
        logits_BC = classifier.class_logits(self.model, inputs.encoded)
        return functional.cross_entropy(logits_BC, inputs.targets_B, reduction="sum")

    def validation_score(self) -> float:
        """Accuracy."""
        return float((self._predict(self._validation) == self._validation.class_T).mean())

    def test(self) -> TaskReport:
        actual_T, predicted_T = self._test.class_T, self._predict(self._test)
        train = self._train.as_texts
        counting_T = tfidf_logistic_regression(train, self._validation.as_texts, self._test.texts)
        ours, counting = score(actual_T, predicted_T, self._labels), score(actual_T, counting_T, self._labels)
        figures = Figures(
            accuracy=ours.accuracy,
            accuracy_low=ours.accuracy_low,
            accuracy_high=ours.accuracy_high,
            macro_f1=ours.macro_f1,
            baseline_tfidf_accuracy=counting.accuracy,
            baseline_tfidf_macro_f1=counting.macro_f1,
            majority_accuracy=float((largest_class(train, len(actual_T)) == actual_T).mean()),
            num_classes=len(self._labels),
            num_train=len(train.texts),
            num_validation=len(self._validation.texts),
            num_test=len(actual_T),
            num_truncated_train=self._train.rows.num_truncated,
            num_truncated_test=self._test.rows.num_truncated,
            num_test_seen_in_pretraining=count_seen(
                (example.identity for example in self._selection.test), self._inputs.pretraining_text
            ),
            records=self._selection.count,
        )
        pairs = zip(actual_T.tolist(), predicted_T.tolist(), strict=True)
        answers = [(self._labels[actual], self._labels[said]) for actual, said in pairs]
        return TaskReport(
            headline=_headline(figures),
            figures=asdict(figures),
            confusion=answers,
            per_class={label: asdict(of_class) for label, of_class in ours.per_class.items()},
            examples=self._examples(answers),
            test_texts=self._test.texts,
        )

    def _examples(self, answers: Sequence[tuple[str, str]]) -> list[ShownItem]:
        items = [
            ShownItem({"text": text}, actual, said, actual == said)
            for text, (actual, said) in zip(self._test.texts, answers, strict=True)
        ]
        return shown(items, self._inputs.params.num_examples)

    def save(self, out: Path) -> None:
        heads.save(self.model, self._inputs.encoder, self._inputs.params.max_length, out)

    def _predict(self, part: ClassifiedRows) -> Classes:
        predicted_T = np.zeros(len(part.texts), dtype=np.int64)
        self.model.eval()
        batch_size = _MEASURED_TOGETHER * self._inputs.params.batch_size
        with torch.inference_mode():
            for rows_B in sorted_batches(part.rows.length_T, batch_size):
                logits_BC = classifier.class_logits(self.model, part.rows.encoded(rows_B))
                predicted_T[rows_B] = logits_BC.argmax(dim=1).numpy()
        return predicted_T


def _headline(figures: Figures) -> Headline:
    return Headline(
        metric="accuracy",
        value=figures.accuracy,
        low=figures.accuracy_low,
        high=figures.accuracy_high,
        baseline="TF-IDF + logistic regression",
        baseline_value=figures.baseline_tfidf_accuracy,
        trivial="largest class",
        trivial_value=figures.majority_accuracy,
    )
