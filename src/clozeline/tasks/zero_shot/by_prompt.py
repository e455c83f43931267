"""One label for each text by what a model says of a prompt behind it, untrained.

Shapes: T texts, C classes.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from clozeline.params import ZeroShotParams
from clozeline.tasks.classification.parts import ClassifiedRows
from clozeline.tasks.classification.single_label import SingleLabel
from clozeline.tasks.task import TaskInputs

Scores = npt.NDArray[np.float32]
_NO_TEXT = ""


class ByPrompt(SingleLabel, ABC):
    """Judged as any classifier with one label; the labelled texts for training go to the baseline alone."""

    def __init__(self, inputs: TaskInputs) -> None:
        """Read the data and open the model; raises as `ClassifierOnTexts`."""
        super().__init__(inputs)
        assert isinstance(inputs.params, ZeroShotParams)
        self.zero = inputs.params
        self.batches_per_epoch, self.trained_on = 0, ()

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
