"""Multi-label classification: any number of labels for each text, possibly none.

Shapes: T texts, B rows of a batch, C classes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from clozeline.artifacts.finetune.model.config_facts import ConfigFacts
from clozeline.artifacts.finetune.shown_item import ShownItem
from clozeline.artifacts.finetune.task_metrics import Beside, Headline
from clozeline.params import LabelledParams
from clozeline.tasks.classification import head as classifier
from clozeline.tasks.classification.baselines import Shares, tfidf_label_shares
from clozeline.tasks.classification.label_sets import FIGURES, LabelSets, best_threshold, score_sets, whole
from clozeline.tasks.classification.on_texts import ClassifierOnTexts, Problem
from clozeline.tasks.classification.parts import ClassifiedRows
from clozeline.tasks.encoded import TargetedBatch
from clozeline.tasks.intervals import bootstrap_interval, paired_interval
from clozeline.tasks.probe import NAME as PROBE
from clozeline.tasks.probe import Logits
from clozeline.tasks.task import InputsOf, TaskReport, only_answer, shown

NO_LABEL = "(none)"


class MultiLabel(ClassifierOnTexts):
    """Classifier with independent labels. A label applies if its probability is above a threshold, which is chosen on
    the validation split and shared by all labels.
    """

    problem: Problem = "multi_label_classification"

    def __init__(self, inputs: InputsOf[LabelledParams]) -> None:
        super().__init__(inputs)
        self.metric = self.params.metric or "micro_f1"
        self._weight_C = _weights(self.train.targets_T) if self.params.class_weights == "balanced" else None

    def loss_sum(self, inputs: TargetedBatch) -> Tensor:
        """Return the mean loss over the labels, summed over the rows."""
        logits_BC = classifier.class_logits(self.model, inputs.encoded)
        weight_C = None if self._weight_C is None else self._weight_C.to(logits_BC.device)
        losses_BC = functional.binary_cross_entropy_with_logits(
            logits_BC, inputs.targets_B, pos_weight=weight_C, reduction="none"
        )
        return losses_BC.mean(dim=1).sum()

    def score_of(self, logits_TC: Logits) -> float:
        """Return the headline figure at the best threshold."""
        share_TC = _shares(logits_TC)
        return self._figure(self._actual(self.validation), share_TC > self._threshold(share_TC))

    def test(self) -> TaskReport:
        actual_TC = self._actual(self.test_part)
        threshold = self._threshold(self._shares(self.validation))
        answers = (self._shares(self.test_part) > threshold, self._counting(), self._most_frequent())
        predicted_TC, counting_TC, frequent_TC = (whole(given_TC, actual_TC) for given_TC in answers)
        ours, counting, frequent = (
            score_sets(actual_TC, given_TC, self.test_part.labels)
            for given_TC in (predicted_TC, counting_TC, frequent_TC)
        )
        figures = {
            "micro_f1": ours.micro_f1,
            "macro_f1": ours.macro_f1,
            "exact_match": ours.exact_match,
            "baseline_tfidf_micro_f1": counting.micro_f1,
            "baseline_tfidf_macro_f1": counting.macro_f1,
            "majority_micro_f1": frequent.micro_f1,
            "decision_threshold": threshold,
            "labels_per_text": float(actual_TC.sum(axis=1).mean()),
            **self.counts(),
            "records": asdict(self.selection.count),
        }

        def headline_on(places: Sequence[int]) -> Headline:
            chosen = np.array(places, dtype=np.int64)
            return self._headline(*(set_TC[chosen] for set_TC in (actual_TC, predicted_TC, counting_TC, frequent_TC)))

        return TaskReport(
            headline=headline_on(range(len(actual_TC))).model_copy(update={"beside": tuple(self._beside(actual_TC))}),
            figures=figures,
            confusion=list(self._pairs(actual_TC, predicted_TC)),
            per_class={label: asdict(of_class) for label, of_class in ours.per_class.items()},
            examples=self._examples(actual_TC, predicted_TC),
            test_texts=self.test_part.texts.whole,
            train_texts=self.train.texts.whole,
            headline_on=headline_on,
            first_places=self.selection.count.first_places,
            only_answer=only_answer(*map(self._named, (predicted_TC, actual_TC))),
        )

    def save(self, out: Path) -> None:
        threshold = self._threshold(self._shares(self.validation))
        ConfigFacts(decision_threshold=threshold).add_to(self.model.config)
        super().save(out)

    def _actual(self, part: ClassifiedRows) -> LabelSets:
        return part.targets_T > 0.5

    def _shares(self, part: ClassifiedRows) -> Shares:
        return _shares(self.logits(part))

    def _figure(self, actual_TC: LabelSets, predicted_TC: LabelSets) -> float:
        return FIGURES[self.metric](actual_TC, whole(predicted_TC, actual_TC))

    def _threshold(self, validation_TC: Shares) -> float:
        return best_threshold(self._actual(self.validation), validation_TC, self._figure)

    def _counting(self) -> LabelSets:
        actual_TC = self._actual(self.validation)
        validation_TC, test_TC = tfidf_label_shares(
            self.train.texts,
            self.train.targets_T,
            lambda share_TC: self._figure(actual_TC, share_TC > self._threshold(share_TC)),
            (self.validation.texts, self.test_part.texts),
        )
        return test_TC > self._threshold(validation_TC)

    def _by_probe(self) -> Iterator[LabelSets]:
        """Yield the label sets of the head that was fitted on the frozen encoder, if it was."""
        if self.probe_validation_TC is not None and self.probe_test_TC is not None:
            yield _shares(self.probe_test_TC) > self._threshold(_shares(self.probe_validation_TC))

    def _most_frequent(self) -> LabelSets:
        is_most_C = np.arange(len(self.labels)) == self._actual(self.train).sum(axis=0).argmax()
        return np.tile(is_most_C, (len(self.test_part), 1))

    def _headline(
        self, actual_TC: LabelSets, predicted_TC: LabelSets, counting_TC: LabelSets, frequent_TC: LabelSets
    ) -> Headline:
        num_texts = len(actual_TC)
        low, high = bootstrap_interval(lambda places: self._figure(actual_TC[places], predicted_TC[places]), num_texts)
        lead_low, lead_high = paired_interval(
            lambda places: self._figure(actual_TC[places], predicted_TC[places]),
            lambda places: self._figure(actual_TC[places], counting_TC[places]),
            num_texts,
        )
        return Headline(
            metric=self.metric,
            value=self._figure(actual_TC, predicted_TC),
            low=low,
            high=high,
            baseline="TF-IDF + logistic regression",
            baseline_value=self._figure(actual_TC, counting_TC),
            trivial="most frequent label",
            trivial_value=self._figure(actual_TC, frequent_TC),
            lead_low=lead_low,
            lead_high=lead_high,
        )

    def _beside(self, actual_TC: LabelSets) -> Iterator[Beside]:
        yield from (Beside(name=PROBE, value=self._figure(actual_TC, given_TC)) for given_TC in self._by_probe())

    def _pairs(self, actual_TC: LabelSets, predicted_TC: LabelSets) -> Iterator[tuple[str, str]]:
        """Yield (actual, predicted) for each label that is actual or predicted for a text; `NO_LABEL` fills the side
        that lacks it.
        """
        for place, label in zip(*np.nonzero(actual_TC | predicted_TC), strict=True):
            name = self.test_part.labels[label]
            yield name if actual_TC[place, label] else NO_LABEL, name if predicted_TC[place, label] else NO_LABEL

    def _examples(self, actual_TC: LabelSets, predicted_TC: LabelSets) -> list[ShownItem]:
        items = [
            ShownItem(self.given(place), actual, predicted, actual == predicted)
            for place, (actual, predicted) in enumerate(
                zip(self._named(actual_TC), self._named(predicted_TC), strict=True)
            )
        ]
        return shown(items, self.params.num_examples)

    def _named(self, is_given_TC: LabelSets) -> Sequence[str]:
        """Return the labels of each text, joined into one string."""
        labels = self.test_part.labels
        names = ([labels[place] for place in np.flatnonzero(is_given_C)] for is_given_C in is_given_TC)
        return [", ".join(of_text) or NO_LABEL for of_text in names]


def _shares(logits_TC: Logits) -> Shares:
    return 1 / (1 + np.exp(-logits_TC.astype(np.float64)))


def _weights(is_true_TC: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> Tensor:
    """Return `weight_C`: texts without a label divided by texts with it, so that both have equal weight in the loss."""
    num_true_C = is_true_TC.sum(axis=0)
    return torch.from_numpy(((len(is_true_TC) - num_true_C) / num_true_C).astype(np.float32))
