"""Base of the text classifiers with one label or several: data, rows and logits.

Shapes: T texts, B rows of a batch, C classes.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from clozeline.artifacts.finetune.model.config_facts import ConfigFacts
from clozeline.artifacts.finetune.model.held_out import HeldOut, write_held_out, write_test_items
from clozeline.params import LabelledParams
from clozeline.tasks import heads
from clozeline.tasks.classification import head as classifier
from clozeline.tasks.classification.baselines import Texts
from clozeline.tasks.classification.parts import ClassifiedRows, read_selection
from clozeline.tasks.encoded import TargetedBatch
from clozeline.tasks.opening import answers, check_fit, measuring_batches, num_batches, warn_of_unknown_tokens
from clozeline.tasks.splitting import count_seen
from clozeline.tasks.task import InputsOf, TaskInputs
from clozeline.tasks.text_rows import Ids, TextRows, lengths_of, training_batches
from clozeline.tokenizer.folder import OpenTokenizer
from clozeline.training.state import Batch

Problem = Literal["single_label_classification", "multi_label_classification"]


class ClassifierOnTexts:
    """An encoder with a head on the mean of its last hidden states, and the texts of the task."""

    problem: Problem

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
        return classifier.build(inputs.encoder, self.labels, inputs.seed, self.problem)

    def batches_from(self, epoch: int, index: int) -> Iterator[Batch[TargetedBatch]]:
        length_T = self.train.rows.length_T
        return training_batches(length_T, self.params.batch_size, self.inputs.seed, epoch, index, self.train.batch)

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

    def logits(self, part: ClassifiedRows) -> npt.NDArray[np.float32]:
        """Return `logits_TC` of every text of a split."""
        logits_TC = np.zeros((len(part), len(self.labels)), dtype=np.float32)
        batches = measuring_batches(part.rows.length_T, self.inputs)
        for rows_B, logits_BC in answers(self.model, batches, part.encoded, classifier.class_logits):
            logits_TC[rows_B] = logits_BC.float().cpu().numpy()
        return logits_TC

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
