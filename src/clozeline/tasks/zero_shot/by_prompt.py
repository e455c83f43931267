"""Zero-shot classification: one label for each text, chosen by an untrained model from a prompt after the text.

Shapes: T texts, C classes.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from clozeline.params import ZeroShotParams
from clozeline.tasks.classification.baselines import Texts
from clozeline.tasks.classification.parts import ClassifiedRows
from clozeline.tasks.classification.single_label import SingleLabel
from clozeline.tasks.task import InputsOf
from clozeline.tasks.text_rows import Ids
from clozeline.tokenizer.folder import OpenTokenizer

_LOG = logging.getLogger(__name__)
Scores = npt.NDArray[np.float32]
_NO_TEXT = ""


class ByPrompt(SingleLabel, ABC):
    """Classifier by prompt, measured like any single-label classifier; only the baseline uses the training texts."""

    def __init__(self, inputs: InputsOf[ZeroShotParams]) -> None:
        """Read the data and open the model. Raises what `ClassifierOnTexts` raises."""
        self.zero = inputs.params
        super().__init__(inputs)
        self.opened = OpenTokenizer.open(inputs.encoder)
        self.batches_per_epoch, self.trained_on = 0, ()
        _name_without_text(self.zero.named_labels - self.selection.every_label)

    def num_truncated(self, part: ClassifiedRows) -> int:
        return int((self.lengths(part.texts, self.labels, self.opened) > self.zero.max_length).sum())

    def logits(self, part: ClassifiedRows) -> Scores:
        """Return `logits_TC`: the score of each label; if calibrated, minus its score without a text (domain
        conditional PMI, Holtzman et al. 2021, section 3).
        """
        logits_TC = self.scores(part.texts.first)
        if not self.zero.calibrated:
            return logits_TC
        return logits_TC - self.scores([_NO_TEXT])

    @abstractmethod
    def scores(self, texts: Sequence[str]) -> Scores:
        """Return `score_TC` of each label's words in the prompt after each text."""

    @abstractmethod
    def lengths(self, texts: Texts, labels: Collection[str], opened: OpenTokenizer) -> Ids:
        """Return `length_T`: tokens of each text followed by the longest prompt of `labels`."""


def _name_without_text(labels: Collection[str]) -> None:
    if labels:
        _LOG.warning(
            "`label_words` has labels that no text of the task has, so that these answers are always wrong: %s; check "
            "their spelling",
            ", ".join(sorted(labels)),
        )
