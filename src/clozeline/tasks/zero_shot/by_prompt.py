"""One label for each text by what a model says of a prompt behind it, untrained.

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
from clozeline.tasks.task import TaskInputs
from clozeline.tasks.text_rows import Ids
from clozeline.tokenizer.folder import OpenTokenizer

_LOG = logging.getLogger(__name__)
Scores = npt.NDArray[np.float32]
_NO_TEXT = ""


class ByPrompt(SingleLabel, ABC):
    """Judged as any classifier with one label; the labelled texts for training go to the baseline alone."""

    def __init__(self, inputs: TaskInputs) -> None:
        """Read the data and open the model; raises as `ClassifierOnTexts`."""
        assert isinstance(inputs.params, ZeroShotParams)
        self.zero = inputs.params
        super().__init__(inputs)
        self.opened = OpenTokenizer.open(inputs.encoder)
        self.batches_per_epoch, self.trained_on = 0, ()
        _name_without_text(self.zero.named_labels - self.selection.every_label)

    def num_truncated(self, part: ClassifiedRows) -> int:
        return int((self.lengths(part.texts, self.labels, self.opened) > self.zero.max_length).sum())

    def logits(self, part: ClassifiedRows) -> Scores:
        """`logits_TC`: a label's score, less that without a text if it is calibrated (Holtzman et al. 2021, section 3:
        domain conditional PMI).
        """
        logits_TC = self.scores(part.texts.first)
        if not self.zero.calibrated:
            return logits_TC
        return logits_TC - self.scores([_NO_TEXT])

    @abstractmethod
    def scores(self, texts: Sequence[str]) -> Scores:
        """`score_TC` of each label's words in the prompt behind each text."""

    @abstractmethod
    def lengths(self, texts: Texts, labels: Collection[str], opened: OpenTokenizer) -> Ids:
        """`length_T`: tokens of each text with the prompt behind it, the longest that `labels` have."""


def _name_without_text(labels: Collection[str]) -> None:
    if labels:
        _LOG.warning(
            "`label_words` has labels that no text of the task has, and whoever is given one is wrong: %s. Are they "
            "spelled as in the data?",
            ", ".join(sorted(labels)),
        )
