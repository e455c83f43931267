"""Single-label classification of texts or pairs of texts.

Shapes: T texts, B rows of a batch, C classes.
"""

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from clozeline.artifacts.finetune.shown_item import ShownItem
from clozeline.artifacts.finetune.task_metrics import Beside, Headline
from clozeline.errors import ParamsError
from clozeline.params import LabelledParams
from clozeline.tasks.classification import head as classifier
from clozeline.tasks.classification.baselines import LabelledTexts, largest_class, tfidf_logistic_regression
from clozeline.tasks.classification.on_texts import ClassifierOnTexts, Problem
from clozeline.tasks.classification.parts import ClassifiedRows
from clozeline.tasks.classification.scores import FIGURES, Classes, f1_of, score
from clozeline.tasks.encoded import TargetedBatch
from clozeline.tasks.intervals import bootstrap_interval, paired_interval
from clozeline.tasks.probe import NAME as PROBE
from clozeline.tasks.probe import Logits
from clozeline.tasks.task import InputsOf, TaskReport, only_answer, shown

_MOST_NAMED = 10


class SingleLabel(ClassifierOnTexts):
    """Classifier with exclusive labels: softmax over the classes, of which the most probable is the answer."""

    problem: Problem = "single_label_classification"
    method: str = "fine-tuned encoder"

    def __init__(self, inputs: InputsOf[LabelledParams]) -> None:
        super().__init__(inputs)
        self.metric = self.params.metric or "accuracy"
        positive = self.params.positive_label
        self._f1_of_positive = None if positive is None else f1_of(self._class_of(positive))
        of_positive = self._f1_of_positive if self.metric == "f1" else None
        self._metric = of_positive or FIGURES[self.metric]
        self._weight_C = _weights(self.train.targets_T) if self.params.class_weights == "balanced" else None

    def loss_sum(self, inputs: TargetedBatch) -> Tensor:
        logits_BC = classifier.class_logits(self.model, inputs.encoded)
        weight_C = None if self._weight_C is None else self._weight_C.to(logits_BC.device)
        return functional.cross_entropy(logits_BC, inputs.targets_B, weight=weight_C, reduction="sum")

    def score_of(self, logits_TC: Logits) -> float:
        class_T: Classes = logits_TC.argmax(axis=1)
        return self._figure(self.validation.targets_T, class_T)

    def test(self) -> TaskReport:
        labels = self.test_part.labels
        actual_T, predicted_T = self.test_part.targets_T, self._answers(self.test_part)
        train, validation = (LabelledTexts(part.texts, part.targets_T) for part in (self.train, self.validation))
        counting_T = tfidf_logistic_regression(train, validation, self.test_part.texts)
        largest_T = largest_class(train.class_T, len(actual_T))
        ours, counting = score(actual_T, predicted_T, labels), score(actual_T, counting_T, labels)
        figures = {
            "accuracy": ours.accuracy,
            "accuracy_low": ours.accuracy_low,
            "accuracy_high": ours.accuracy_high,
            "macro_f1": ours.macro_f1,
            "matthews": ours.matthews,
            "baseline_tfidf_accuracy": counting.accuracy,
            "baseline_tfidf_macro_f1": counting.macro_f1,
            **self._of_probe(actual_T),
            "majority_accuracy": float((largest_T == actual_T).mean()),
            **self._f1s(actual_T, predicted_T, counting_T, largest_T),
            **self.counts(),
            "records": asdict(self.selection.count),
        }

        def headline_on(places: Sequence[int]) -> Headline:
            chosen = np.array(places, dtype=np.int64)
            return self._headline(*(class_T[chosen] for class_T in (actual_T, predicted_T, counting_T, largest_T)))

        answers = [(labels[a], labels[p]) for a, p in zip(actual_T.tolist(), predicted_T.tolist(), strict=True)]
        return TaskReport(
            headline=headline_on(range(len(actual_T))).model_copy(update={"beside": self._beside(actual_T)}),
            figures=figures,
            confusion=answers,
            per_class={label: asdict(of_class) for label, of_class in ours.per_class.items()},
            examples=self._examples(answers),
            test_texts=self.test_part.texts.whole,
            train_texts=self.train.texts.whole,
            headline_on=headline_on,
            first_places=self.selection.count.first_places,
            only_answer=only_answer([predicted for _, predicted in answers], [right for right, _ in answers]),
        )

    def _answers(self, part: ClassifiedRows) -> Classes:
        class_T: Classes = self.logits(part).argmax(axis=1)
        return class_T

    def _figure(self, actual_T: Classes, predicted_T: Classes) -> float:
        num_classes = max(len(part.labels) for part in (self.validation, self.test_part))
        return self._metric(actual_T, predicted_T, num_classes)

    def _class_of(self, positive_label: str) -> int:
        if positive_label not in self.labels:
            raise ParamsError(
                f"no training text has the `positive_label` {positive_label}",
                do=f"set it to one of {', '.join(self.labels[:_MOST_NAMED])}{', …' * (len(self.labels) > _MOST_NAMED)}",
            )
        return self.labels.index(positive_label)

    def _f1s(
        self, actual_T: Classes, predicted_T: Classes, counting_T: Classes, largest_T: Classes
    ) -> dict[str, float]:
        """Return F1 of the positive class by method, if the task names a positive class."""
        if self._f1_of_positive is None:
            return {}
        predictions = {"f1": predicted_T, "baseline_tfidf_f1": counting_T, "majority_f1": largest_T}
        num_classes = len(self.test_part.labels)
        return {name: self._f1_of_positive(actual_T, class_T, num_classes) for name, class_T in predictions.items()}

    def _of_probe(self, actual_T: Classes) -> dict[str, float]:
        """Return the figures of the head that was fitted on the frozen encoder, if it was."""
        if self.probe_test_TC is None:
            return {}
        found = score(actual_T, self.probe_test_TC.argmax(axis=1), self.test_part.labels)
        return {"baseline_probe_accuracy": found.accuracy, "baseline_probe_macro_f1": found.macro_f1}

    def _beside(self, actual_T: Classes) -> tuple[Beside, ...]:
        if self.probe_test_TC is None:
            return ()
        return (Beside(name=PROBE, value=self._figure(actual_T, self.probe_test_TC.argmax(axis=1))),)

    def _headline(self, actual_T: Classes, predicted_T: Classes, counting_T: Classes, largest_T: Classes) -> Headline:
        if self.metric == "accuracy":
            ours = score(actual_T, predicted_T, self.test_part.labels)
            low, high = ours.accuracy_low, ours.accuracy_high
        else:
            low, high = bootstrap_interval(
                lambda places: self._figure(actual_T[places], predicted_T[places]), len(actual_T)
            )
        lead_low, lead_high = paired_interval(
            lambda places: self._figure(actual_T[places], predicted_T[places]),
            lambda places: self._figure(actual_T[places], counting_T[places]),
            len(actual_T),
        )
        return Headline(
            metric=self.metric,
            value=self._figure(actual_T, predicted_T),
            low=low,
            high=high,
            baseline="TF-IDF + logistic regression",
            baseline_value=self._figure(actual_T, counting_T),
            trivial="largest class",
            trivial_value=self._figure(actual_T, largest_T),
            method=self.method,
            lead_low=lead_low,
            lead_high=lead_high,
        )

    def _examples(self, answers: Sequence[tuple[str, str]]) -> list[ShownItem]:
        items = [
            ShownItem(self.given(place), actual, predicted, actual == predicted)
            for place, (actual, predicted) in enumerate(answers)
        ]
        return shown(items, self.params.num_examples)


def _weights(class_T: Classes) -> Tensor:
    """Return `weight_C`, inverse to the size of the class and 1 on average over texts (King & Zeng 2001)."""
    size_C = np.bincount(class_T)
    return torch.from_numpy((len(class_T) / (len(size_C) * size_C)).astype(np.float32))
