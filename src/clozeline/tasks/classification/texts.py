"""Classification of texts or pairs of texts: each has a single label, or any number of labels, possibly none.

Shapes: T texts, B rows of a batch, C classes.
"""

from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from clozeline.params.tasks import LabelledParams
from clozeline.records.finetune.scored_items import ConfigFacts, HeldOut
from clozeline.records.finetune.statistics import Figure, wilson_interval
from clozeline.records.finetune.task_metrics import ShownItem
from clozeline.system.errors import ParamsError
from clozeline.tasks import heads, probe, task
from clozeline.tasks.classification import data, scores
from clozeline.tasks.classification.scores import Classes, LabelSets, Shares, TextsOrPairs, whole
from clozeline.tasks.probe import Logits
from clozeline.tasks.report import HeadlineFigure, TaskReport
from clozeline.tasks.rows import EncodedBatch, Ids, lengths_of
from clozeline.tokenizing.tokenizer.folder import OpenTokenizer

_MOST_NAMED = 10
NO_LABEL = "(none)"


class ClassifierOnTexts(task.Task[data.LabelledText]):
    """An encoder with a head on the mean of its last hidden states, and the texts of the task."""

    problem: heads.Problem
    method = "fine-tuned encoder"
    metric: str
    splits: data.Selection
    fitted = probe.NAME
    # Answers of the fitted head on the frozen encoder, for the validation and the test split; None if it was not
    # fitted.
    probe_logits: tuple[Logits, Logits] | None = None

    def __init__(self, inputs: task.InputsOf[LabelledParams]) -> None:
        params = inputs.params
        self.params = params  # `lengths` reads them
        opened = OpenTokenizer.open(inputs.encoder)
        splits = data.read_selection(inputs, params, partial(self.lengths, opened=opened))
        self.labels = splits.labels
        super().__init__(inputs, splits, self.built(inputs), opened, reads_pairs=params.reads_pairs)
        self.train, self.validation, self.test_part = (
            data.ClassifiedRows.encode(part, self.labels, opened, params) for part in splits.parts.values()
        )
        self.feed(self.train.rows)
        if params.train_length is not None:
            self.length_T = np.minimum(self.length_T, params.train_length)

    def lengths(self, texts: TextsOrPairs, labels: Collection[str], opened: OpenTokenizer) -> Ids:
        """Return `length_T`: tokens of each text as the model reads it when it chooses among `labels`."""
        return lengths_of(texts.first, opened, texts.second)

    def built(self, inputs: task.TaskInputs) -> heads.TaskModel:
        """Return the model of the task; raises as `heads.build`."""
        return heads.build_classifier(inputs.encoder, self.labels, inputs.seed, self.problem, inputs.family)

    def batch(self, rows_B: Ids, epoch: int) -> EncodedBatch:
        rows, length = self.train.rows, self.params.train_length
        targets_B = torch.from_numpy(self.train.targets_T[rows_B])
        if length is None:
            return rows.encoded(rows_B, with_types=self.with_types, targets_B=targets_B)
        cut = rows.windows(rows_B, length, self.inputs.seed, epoch)
        return cut.encoded(np.arange(len(rows_B)), targets_B=targets_B)

    def facts(self) -> ConfigFacts:
        return ConfigFacts(reads_pairs=self.params.reads_pairs)

    def held_out(self, items: Sequence[data.LabelledText], most: int) -> list[HeldOut]:
        return [HeldOut(text=it.text, second=it.second or None, right=it.labels) for it in items]

    def fit_head(self) -> None:
        """Fit the output layer by logistic regression on the frozen encoder; keep its answers as a baseline."""
        fitted_T = probe.places_to_fit(len(self.train))
        validation_TF = self.outputs(self.validation.rows, heads.features)
        found = probe.fitted_output(
            heads.output_layer(self.model),
            (self.outputs(self.train.rows, heads.features, fitted_T), self.train.targets_T[fitted_T]),
            (validation_TF, self.validation.targets_T),
            is_balanced=self.params.class_weights == "balanced",
        )
        test_TF = self.outputs(self.test_part.rows, heads.features)
        self.probe_logits = found.logits(validation_TF), found.logits(test_TF)

    def logits(self, part: data.ClassifiedRows) -> Logits:
        """Return `logits_TC` of every text of a split."""
        return self.outputs(part.rows, heads.logits)

    def num_truncated(self, part: data.ClassifiedRows) -> int:
        """Return the number of texts of a split whose end is cut off."""
        return part.rows.num_truncated

    @abstractmethod
    def figure(self, actual_T: npt.NDArray[Any], given_T: npt.NDArray[Any]) -> float:
        """Return the headline figure of answers to texts of one split."""

    def report(
        self,
        actual_T: npt.NDArray[Any],
        answers: Mapping[str, npt.NDArray[Any]],
        figures: Mapping[str, object],
        per_class: Mapping[str, Mapping[str, float]],
        confusion: Sequence[tuple[str, str]],
        named: Sequence[tuple[str, str]],
    ) -> TaskReport:
        """Return the report on the test split.

        Args:
            answers: name of a method → its answers: the model's, those of TF-IDF, the trivial ones; then perhaps those
                of the fitted head.
            named: the right and the predicted answer to each text, in words.
        """

        def of(given_T: npt.NDArray[Any]) -> Figure:
            return lambda places: self.figure(actual_T[places], given_T[places])

        (_, ours_T), counting, trivial, *further = answers.items()
        is_right_T = actual_T == ours_T
        figure = HeadlineFigure(
            self.metric,
            of(ours_T),
            (counting[0], of(counting[1])),
            (trivial[0], of(trivial[1])),
            self.method,
            interval=(lambda place_N: wilson_interval(int(is_right_T[place_N].sum()), len(place_N)))
            if self.metric == "accuracy"
            else None,
        )
        texts = self.test_part.texts
        given = [
            {"text": first} if texts.second is None else {"text": first, "second": texts.second[place]}
            for place, first in enumerate(texts.first)
        ]
        items = [ShownItem(it, right, said, right == said) for it, (right, said) in zip(given, named, strict=True)]
        return self.reported(
            {**figures, **self._counts()},
            items,
            headline=figure.on(range(len(actual_T)), {name: of(given_T) for name, given_T in further}),
            confusion=confusion,
            per_class=per_class,
            test_texts=texts.whole,
            train_texts=self.train.texts.whole,
            headline_on=figure.on,
        )

    def _counts(self) -> dict[str, object]:
        selection = self.splits
        return {
            "num_classes": len(self.labels),
            **selection.sizes,
            "num_truncated_train": self.num_truncated(self.train),
            "num_truncated_test": self.num_truncated(self.test_part),
            "num_validation_of_classes_without_training_text": selection.num_not_trained(selection.validation),
            "num_test_of_classes_without_training_text": selection.num_not_trained(selection.test),
            "num_test_seen_in_pretraining": self.num_seen(example.identity for example in selection.test),
        }


class SingleLabel(ClassifierOnTexts):
    """Classifier with exclusive labels: softmax over the classes, of which the most probable is the answer."""

    problem: heads.Problem = "single_label_classification"

    def __init__(self, inputs: task.InputsOf[LabelledParams]) -> None:
        super().__init__(inputs)
        self.metric = self.params.metric or "accuracy"
        positive = self.params.positive_label
        self._f1_of_positive = None if positive is None else scores.f1_of(self._class_of(positive))
        of_positive = self._f1_of_positive if self.metric == "f1" else None
        self._metric = of_positive or scores.FIGURES[self.metric]
        self._weight_C: Tensor | None = None
        if self.params.class_weights == "balanced":
            # Inverse to the size of the class and 1 on average over texts (King & Zeng 2001).
            size_C = np.bincount(self.train.targets_T)
            self._weight_C = torch.from_numpy((len(self.train) / (len(size_C) * size_C)).astype(np.float32))

    def loss_sum(self, inputs: EncodedBatch) -> Tensor:
        logits_BC = heads.logits(self.model, inputs)
        weight_C = None if self._weight_C is None else self._weight_C.to(logits_BC.device)
        return functional.cross_entropy(logits_BC, inputs.targets_B, weight=weight_C, reduction="sum")

    def validation_score(self) -> float:
        """Return the headline figure."""
        return self.figure(self.validation.targets_T, self.logits(self.validation).argmax(axis=1))

    def figure(self, actual_T: Classes, given_T: Classes) -> float:
        num_classes = max(len(part.labels) for part in (self.validation, self.test_part))
        return self._metric(actual_T, given_T, num_classes)

    def test(self) -> TaskReport:
        labels, actual_T = self.test_part.labels, self.test_part.targets_T
        train, validation = ((part.texts, part.targets_T) for part in (self.train, self.validation))
        ours_T: Classes = self.logits(self.test_part).argmax(axis=1)
        counting_T = scores.tfidf_logistic_regression(train, validation, self.test_part.texts)
        largest_T = scores.largest_class(self.train.targets_T, len(actual_T))
        answers = {"": ours_T, "TF-IDF + logistic regression": counting_T, "largest class": largest_T}
        compared = {"baseline_tfidf": counting_T}
        if self.probe_logits is not None:
            answers[probe.NAME] = compared["baseline_probe"] = self.probe_logits[1].argmax(axis=1)
        figures = scores.score(actual_T, ours_T, len(labels))
        for name, given_T in compared.items():
            found = scores.score(actual_T, given_T, len(labels))
            figures |= {f"{name}_{metric}": found[metric] for metric in ("accuracy", "macro_f1")}
        figures["majority_accuracy"] = float((largest_T == actual_T).mean())
        if self._f1_of_positive is not None:
            for name, given_T in {"f1": ours_T, "baseline_tfidf_f1": counting_T, "majority_f1": largest_T}.items():
                figures[name] = self._f1_of_positive(actual_T, given_T, len(labels))
        named = [(labels[a], labels[p]) for a, p in zip(actual_T.tolist(), ours_T.tolist(), strict=True)]
        return self.report(actual_T, answers, figures, scores.score_each(actual_T, ours_T, labels), named, named)

    def _class_of(self, positive_label: str) -> int:
        if positive_label not in self.labels:
            raise ParamsError(
                f"no training text has the `positive_label` {positive_label}",
                do=f"set it to one of {', '.join(self.labels[:_MOST_NAMED])}{', …' * (len(self.labels) > _MOST_NAMED)}",
            )
        return self.labels.index(positive_label)


class MultiLabel(ClassifierOnTexts):
    """Classifier with independent labels. A label applies if its probability is above a threshold, which is chosen on
    the validation split and shared by all labels.
    """

    problem: heads.Problem = "multi_label_classification"

    def __init__(self, inputs: task.InputsOf[LabelledParams]) -> None:
        super().__init__(inputs)
        self.metric = self.params.metric or "micro_f1"
        self._actual_TC, self._test_TC = (part.targets_T > 0.5 for part in (self.validation, self.test_part))
        self._weight_C: Tensor | None = None
        if self.params.class_weights == "balanced":
            # Texts without a label divided by texts with it, so that both have equal weight in the loss.
            num_true_C = self.train.targets_T.sum(axis=0)
            self._weight_C = torch.from_numpy(((len(self.train) - num_true_C) / num_true_C).astype(np.float32))

    def loss_sum(self, inputs: EncodedBatch) -> Tensor:
        """Return the mean loss over the labels, summed over the rows."""
        logits_BC = heads.logits(self.model, inputs)
        weight_C = None if self._weight_C is None else self._weight_C.to(logits_BC.device)
        losses_BC = functional.binary_cross_entropy_with_logits(
            logits_BC, inputs.targets_B, pos_weight=weight_C, reduction="none"
        )
        return losses_BC.mean(dim=1).sum()

    def validation_score(self) -> float:
        """Return the headline figure at the best threshold."""
        return self._score_of_shares(_shares(self.logits(self.validation)))

    def _score_of_shares(self, share_TC: Shares) -> float:
        return self.figure(self._actual_TC, share_TC > self._threshold(share_TC))

    def figure(self, actual_T: LabelSets, given_T: LabelSets) -> float:
        return scores.SET_FIGURES[self.metric](actual_T, whole(given_T, actual_T))

    def test(self) -> TaskReport:
        actual_TC, labels = self._test_TC, self.test_part.labels
        validation_TC = _shares(self.logits(self.validation))
        threshold = self._threshold(validation_TC)
        counting = scores.tfidf_label_shares(
            *(self.train.texts, self.train.targets_T, self._score_of_shares),
            (self.validation.texts, self.test_part.texts),
        )
        is_most_frequent_C = np.arange(len(self.labels)) == (self.train.targets_T > 0.5).sum(axis=0).argmax()
        given = {
            "": _shares(self.logits(self.test_part)) > threshold,
            "TF-IDF + logistic regression": counting[1] > self._threshold(counting[0]),
            "most frequent label": np.tile(is_most_frequent_C, (len(self.test_part), 1)),
        }
        if self.probe_logits is not None:
            by_validation_TC, by_test_TC = map(_shares, self.probe_logits)
            given[probe.NAME] = by_test_TC > self._threshold(by_validation_TC)
        answers = {name: whole(given_TC, actual_TC) for name, given_TC in given.items()}
        ours_TC, counting_TC, frequent_TC, *_ = answers.values()
        baseline = scores.score_sets(actual_TC, counting_TC)
        figures = {
            **scores.score_sets(actual_TC, ours_TC),
            "baseline_tfidf_micro_f1": baseline["micro_f1"],
            "baseline_tfidf_macro_f1": baseline["macro_f1"],
            "majority_micro_f1": scores.score_sets(actual_TC, frequent_TC)["micro_f1"],
            "decision_threshold": threshold,
            "labels_per_text": float(actual_TC.sum(axis=1).mean()),
        }
        per_class = scores.score_each_label(actual_TC, ours_TC, labels)
        named = list(zip(self._named(actual_TC), self._named(ours_TC), strict=True))
        return self.report(actual_TC, answers, figures, per_class, list(self._pairs(actual_TC, ours_TC)), named)

    def facts(self) -> ConfigFacts:
        threshold = self._threshold(_shares(self.logits(self.validation)))
        return ConfigFacts(reads_pairs=super().facts().reads_pairs, decision_threshold=threshold)

    def _threshold(self, validation_TC: Shares) -> float:
        return scores.best_threshold(self._actual_TC, validation_TC, self.figure)

    def _pairs(self, actual_TC: LabelSets, predicted_TC: LabelSets) -> Iterator[tuple[str, str]]:
        """Yield (actual, predicted) for each label that is actual or predicted for a text; `NO_LABEL` fills the side
        that lacks it.
        """
        for place, label in zip(*np.nonzero(actual_TC | predicted_TC), strict=True):
            name = self.test_part.labels[label]
            yield name if actual_TC[place, label] else NO_LABEL, name if predicted_TC[place, label] else NO_LABEL

    def _named(self, is_given_TC: LabelSets) -> Sequence[str]:
        """Return the labels of each text, joined into one string."""
        labels = self.test_part.labels
        names = ([labels[place] for place in np.flatnonzero(is_given_C)] for is_given_C in is_given_TC)
        return [", ".join(of_text) or NO_LABEL for of_text in names]


def _shares(logits_TC: Logits) -> Shares:
    return 1 / (1 + np.exp(-logits_TC.astype(np.float64)))
