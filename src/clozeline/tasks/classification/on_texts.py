"""Base of the text classifiers with one label or several: data, rows and logits.

Shapes: T texts, B rows of a batch, C classes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from clozeline.artifacts.finetune.model.config_facts import ConfigFacts
from clozeline.artifacts.finetune.model.held_out import HeldOut, write_held_out, write_test_items
from clozeline.params import LabelledParams
from clozeline.tasks import heads
from clozeline.tasks.classification import head as classifier
from clozeline.tasks.classification.baselines import Texts
from clozeline.tasks.classification.parts import ClassifiedRows, read_selection
from clozeline.tasks.encoded import EncodedBatch, TargetedBatch
from clozeline.tasks.opening import answers, check_fit, measuring_batches, num_batches, warn_of_unknown_tokens
from clozeline.tasks.probe import NAME as PROBE
from clozeline.tasks.probe import Features, Logits, best_probe, log_loss, places_to_fit
from clozeline.tasks.splitting import count_seen
from clozeline.tasks.task import InputsOf, TaskInputs
from clozeline.tasks.text_rows import Ids, TextRows, Turn, batches_from, lengths_of, training_batches
from clozeline.tokenizer.folder import OpenTokenizer
from clozeline.training.state import Batch

Problem = Literal["single_label_classification", "multi_label_classification"]


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

    def lengths(self, texts: Texts, labels: Collection[str], opened: OpenTokenizer) -> Ids:
        """Return `length_T`: tokens of each text as the model reads it when it chooses among `labels`."""
        return lengths_of(texts.first, opened, texts.second)

    def built(self, inputs: TaskInputs) -> heads.TaskModel:
        """Return the model of the task; raises as `heads.build`."""
        return classifier.build(inputs.encoder, self.labels, inputs.seed, self.problem, inputs.family)

    def batches_from(self, epoch: int, index: int) -> Iterator[Batch[TargetedBatch]]:
        length_T, size, seed = self.train.rows.length_T, self.params.batch_size, self.inputs.seed
        if self.params.train_length is None:
            return training_batches(length_T, size, seed, epoch, index, self.train.batch)
        turns = batches_from(np.minimum(length_T, self.params.train_length), size, seed, epoch, index)
        return (self._windows(turn, self.params.train_length) for turn in turns)

    def _windows(self, turn: Turn, length: int) -> Batch[TargetedBatch]:
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
        return self._outputs(part, np.arange(len(part)), classifier.class_logits)

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
