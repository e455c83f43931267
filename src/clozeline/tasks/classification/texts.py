"""Classification of texts or pairs of texts: each has a single label, or any number of labels, possibly none.

Shapes: T texts, B rows of a batch, C classes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from clozeline.params.tasks import LabelledParams
from clozeline.records.finetune.scored_items import ConfigFacts, HeldOut, write_held_out, write_test_items
from clozeline.records.finetune.statistics import bootstrap_interval, paired_interval
from clozeline.records.finetune.task_metrics import Beside, Headline, ShownItem
from clozeline.system.errors import ParamsError
from clozeline.tasks import heads
from clozeline.tasks.classification.data import ClassifiedRows, read_selection
from clozeline.tasks.classification.scores import (
    FIGURES,
    SET_FIGURES,
    Classes,
    LabelledTexts,
    LabelSets,
    Shares,
    TextsOrPairs,
    best_threshold,
    f1_of,
    largest_class,
    score,
    score_sets,
    tfidf_label_shares,
    tfidf_logistic_regression,
    whole,
)
from clozeline.tasks.probe import NAME as PROBE
from clozeline.tasks.probe import Features, Logits, best_probe, log_loss, places_to_fit
from clozeline.tasks.rows import (
    EncodedBatch,
    Ids,
    RowTurn,
    TargetedBatch,
    TextRows,
    batches_from,
    lengths_of,
    training_batches,
)
from clozeline.tasks.selection import count_seen
from clozeline.tasks.task import (
    InputsOf,
    TaskInputs,
    TaskReport,
    answers,
    check_fit,
    measuring_batches,
    num_batches,
    only_answer,
    shown,
    warn_of_unknown_tokens,
)
from clozeline.tokenizing.tokenizer.folder import OpenTokenizer
from clozeline.training.state import Batch

Problem = Literal["single_label_classification", "multi_label_classification"]
_MOST_NAMED = 10
NO_LABEL = "(none)"


class ClassifierOnTexts(ABC):
    """An encoder with a head on the mean of its last hidden states, and the texts of the task."""

    problem: Problem
    fitted = PROBE
    probe_validation_TC: Logits | None = None
    probe_test_TC: Logits | None = None
    """Answers of the fitted head on the frozen encoder, for the validation and the test split; None if it was not
    fitted.
    """

    def __init__(self, inputs: InputsOf[LabelledParams]) -> None:
        params = inputs.params
        self.inputs, self.params = inputs, params
        opened = OpenTokenizer.open(inputs.encoder)
        self.selection = read_selection(inputs, params, partial(self.lengths, opened=opened))
        self.labels = self.selection.labels
        self.model = self.built(inputs)
        check_fit(self.model, opened, inputs)
        with_types = params.second_field is not None and heads.tells_pairs_apart(self.model)
        self.train, self.validation, self.test_part = (
            replace(ClassifiedRows.encode(part, self.labels, opened, params), with_types=with_types)
            for part in (self.selection.train, self.selection.validation, self.selection.test)
        )
        self.trained_on: Sequence[TextRows] = (self.train.rows,)
        warn_of_unknown_tokens(opened, *self.trained_on)
        self.batches_per_epoch = num_batches(len(self.train), inputs)

    def lengths(self, texts: TextsOrPairs, labels: Collection[str], opened: OpenTokenizer) -> Ids:
        """Return `length_T`: tokens of each text as the model reads it when it chooses among `labels`."""
        return lengths_of(texts.first, opened, texts.second)

    def built(self, inputs: TaskInputs) -> heads.TaskModel:
        """Return the model of the task; raises as `heads.build`."""
        return heads.build_classifier(inputs.encoder, self.labels, inputs.seed, self.problem, inputs.family)

    def batches_from(self, epoch: int, index: int) -> Iterator[Batch[TargetedBatch]]:
        length_T, size, seed = self.train.rows.length_T, self.params.batch_size, self.inputs.seed
        if self.params.train_length is None:
            return training_batches(length_T, size, seed, epoch, index, self.train.batch)
        turns = batches_from(np.minimum(length_T, self.params.train_length), size, seed, epoch, index)
        return (self._windows(turn, self.params.train_length) for turn in turns)

    def _windows(self, turn: RowTurn, length: int) -> Batch[TargetedBatch]:
        """Return a training batch of windows."""
        rows = self.train.rows.windows(turn.rows_B, length, self.inputs.seed, turn.epoch)
        encoded = rows.encoded(np.arange(len(rows)))
        targets_B = torch.from_numpy(self.train.targets_T[turn.rows_B])
        return Batch(turn.epoch, turn.batch, TargetedBatch(encoded, targets_B), int(rows.length_T.sum()), len(rows))

    def save(self, out: Path) -> None:
        ConfigFacts(reads_pairs=self.params.second_field is not None).add_to(self.model.config)
        heads.save(self.model, self.inputs.encoder, self.params.max_length, out, with_types=self.train.with_types)
        self._hold_out(out)

    def _hold_out(self, out: Path) -> None:
        """Write validation and test split beside the model: exported graphs are examined on the first, and a release
        compares the model with the champion on the second.
        """
        for write, part in ((write_held_out, self.selection.validation), (write_test_items, self.selection.test)):
            write(out, [HeldOut(text=it.text, second=it.second or None, right=it.labels) for it in part])

    def fit_head(self) -> None:
        """Fit the output layer by logistic regression on the frozen encoder; keep its answers for the test split, as a
        baseline.

        The regularization with the lowest loss on the validation split is chosen: among few texts, it is less a matter
        of chance than their accuracy.
        """
        fitted_T = places_to_fit(len(self.train))
        validation_TF = self._features(self.validation)
        output = heads.output_layer(self.model)
        probe = best_probe(
            self._features(self.train, fitted_T),
            self.train.targets_T[fitted_T],
            lambda probe: -log_loss(probe.logits(validation_TF), self.validation.targets_T),
            num_classes=len(self.labels),
            has_bias=output.bias is not None,
            is_balanced=self.params.class_weights == "balanced",
        )
        probe.write_to(output)
        self.probe_validation_TC = probe.logits(validation_TF)
        self.probe_test_TC = probe.logits(self._features(self.test_part))

    @abstractmethod
    def score_of(self, logits_TC: Logits) -> float:
        """Return the headline figure of logits for the validation split."""

    def validation_score(self) -> float:
        """Return the headline figure."""
        return self.score_of(self.logits(self.validation))

    def logits(self, part: ClassifiedRows) -> Logits:
        """Return `logits_TC` of every text of a split."""
        return self._outputs(part, np.arange(len(part)), heads.class_logits)

    def _features(self, part: ClassifiedRows, row_T: Ids | None = None) -> Features:
        return self._outputs(part, np.arange(len(part)) if row_T is None else row_T, heads.features)

    def _outputs(
        self, part: ClassifiedRows, row_T: Ids, compute: Callable[[heads.TaskModel, EncodedBatch], Tensor]
    ) -> npt.NDArray[np.float32]:
        """Return what `compute` gives for these rows of a split, in their order."""
        batches = measuring_batches(part.rows.length_T[row_T], self.inputs)
        found = answers(self.model, batches, lambda place_B: part.encoded(row_T[place_B]), compute)
        pieces = [(place_B, output_BX.float().cpu().numpy()) for place_B, output_BX in found]
        place_T = np.concatenate([place_B for place_B, _ in pieces])
        outputs_TX: npt.NDArray[np.float32] = np.concatenate([output_BX for _, output_BX in pieces])
        return outputs_TX[np.argsort(place_T)]

    def num_truncated(self, part: ClassifiedRows) -> int:
        """Return the number of texts of a split whose end is cut off."""
        return part.rows.num_truncated

    def counts(self) -> dict[str, int]:
        """Return the counts of the data, which are the same for one label and several."""
        identities = (example.identity for example in self.selection.test)
        return {
            "num_classes": len(self.labels),
            "num_train": len(self.train),
            "num_validation": len(self.validation),
            "num_test": len(self.test_part),
            "num_truncated_train": self.num_truncated(self.train),
            "num_truncated_test": self.num_truncated(self.test_part),
            "num_validation_of_classes_without_training_text": self.selection.num_not_trained(
                self.selection.validation
            ),
            "num_test_of_classes_without_training_text": self.selection.num_not_trained(self.selection.test),
            # Test texts that the encoder was pre-trained on, ignoring case and white space.
            "num_test_seen_in_pretraining": count_seen(identities, self.inputs.pretraining_text),
        }

    def given(self, place: int) -> dict[str, str]:
        """Return a test text or pair for display, keyed by field."""
        texts = self.test_part.texts
        named = {"text": texts.first[place]}
        return named if texts.second is None else {**named, "second": texts.second[place]}


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
        self._weight_C = _class_weights(self.train.targets_T) if self.params.class_weights == "balanced" else None

    def loss_sum(self, inputs: TargetedBatch) -> Tensor:
        logits_BC = heads.class_logits(self.model, inputs.encoded)
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


def _class_weights(class_T: Classes) -> Tensor:
    """Return `weight_C`, inverse to the size of the class and 1 on average over texts (King & Zeng 2001)."""
    size_C = np.bincount(class_T)
    return torch.from_numpy((len(class_T) / (len(size_C) * size_C)).astype(np.float32))


class MultiLabel(ClassifierOnTexts):
    """Classifier with independent labels. A label applies if its probability is above a threshold, which is chosen on
    the validation split and shared by all labels.
    """

    problem: Problem = "multi_label_classification"

    def __init__(self, inputs: InputsOf[LabelledParams]) -> None:
        super().__init__(inputs)
        self.metric = self.params.metric or "micro_f1"
        self._weight_C = _label_weights(self.train.targets_T) if self.params.class_weights == "balanced" else None

    def loss_sum(self, inputs: TargetedBatch) -> Tensor:
        """Return the mean loss over the labels, summed over the rows."""
        logits_BC = heads.class_logits(self.model, inputs.encoded)
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
        return SET_FIGURES[self.metric](actual_TC, whole(predicted_TC, actual_TC))

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


def _label_weights(is_true_TC: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> Tensor:
    """Return `weight_C`: texts without a label divided by texts with it, so that both have equal weight in the loss."""
    num_true_C = is_true_TC.sum(axis=0)
    return torch.from_numpy(((len(is_true_TC) - num_true_C) / num_true_C).astype(np.float32))
