"""One label for each text, by what the pre-trained model fills into a prompt (Schick & Schuetze 2021), untrained.

Shapes: T texts, B rows of a batch, C classes, V vocabulary.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from clozeline.model import cloze, heads
from clozeline.params import ZeroShotParams
from clozeline.tasks.classification.parts import ClassifiedRows
from clozeline.tasks.classification.single_label import SingleLabel
from clozeline.tasks.rows import TextRows, sorted_batches
from clozeline.tasks.task import TaskInputs
from clozeline.tasks.zero_shot.prompts import prompted, word_ids
from clozeline.tokens.tokenizer import OpenTokenizer

_NO_TEXT = ""


class ZeroShot(SingleLabel):
    """Judged as any classifier with one label; the labelled texts for training go to the baseline alone."""

    def __init__(self, inputs: TaskInputs) -> None:
        """Read the data and open the model; raises as `ClassifierOnTexts`, and:

        ParamsError: a label has no words of one token, or the prompt is too long.
        """
        super().__init__(inputs)
        assert isinstance(inputs.params, ZeroShotParams)
        self._zero = inputs.params
        self._opened = OpenTokenizer.open(inputs.encoder)
        self._word_ids = word_ids(self.labels, self._zero.label_words, self._opened)
        self.batches_per_epoch = 0

    def built(self, inputs: TaskInputs) -> heads.TaskModel:
        return cloze.build(inputs.encoder)

    def logits(self, part: ClassifiedRows) -> npt.NDArray[np.float32]:
        """`logits_TC`: mean log-probability of a label's words, less that without a text if it is calibrated (Holtzman
        et al. 2021, section 3: domain conditional PMI).
        """
        logits_TC = self._filled(self._rows(part.texts.first))
        if not self._zero.calibrated:
            return logits_TC
        return logits_TC - self._filled(self._rows([_NO_TEXT]))

    def _rows(self, texts: Sequence[str]) -> TextRows:
        return prompted(texts, self._zero.prompt, self._opened, self._zero.max_length)

    def _filled(self, rows: TextRows) -> npt.NDArray[np.float32]:
        logits_TC = np.zeros((len(rows), len(self.labels)), dtype=np.float32)
        self.model.eval()
        with torch.inference_mode():
            for rows_B in sorted_batches(rows.length_T, self.params.batch_size):
                batch = rows.encoded(rows_B).to(self.model.device)
                log_BV = cloze.log_probabilities(self.model, batch, self._opened.special_ids.mask).cpu().numpy()
                for label, ids_W in enumerate(self._word_ids):
                    logits_TC[rows_B, label] = log_BV[:, ids_W].mean(axis=1)
        return logits_TC
