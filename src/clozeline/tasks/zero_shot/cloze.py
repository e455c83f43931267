"""Zero-shot classification by the word that the pre-trained model fills into a prompt (Schick & Schuetze 2021).

Shapes: T texts, B rows of a batch, C classes, V vocabulary, W words of a label.
"""

from collections.abc import Collection, Sequence
from functools import partial

import numpy as np

from clozeline.params import ZeroShotParams
from clozeline.tasks import heads
from clozeline.tasks.classification.baselines import Texts
from clozeline.tasks.opening import answers
from clozeline.tasks.task import InputsOf, TaskInputs
from clozeline.tasks.text_rows import Ids, TextRows, sorted_batches
from clozeline.tasks.zero_shot import head as cloze
from clozeline.tasks.zero_shot.by_prompt import ByPrompt, Scores
from clozeline.tasks.zero_shot.prompts import prompted, prompted_lengths, word_ids
from clozeline.tokenizer.folder import OpenTokenizer


class Cloze(ByPrompt):
    """Classifier by the mean log-probability of a label's words in the blank."""

    method = "zero-shot encoder with a prompt"

    def __init__(self, inputs: InputsOf[ZeroShotParams]) -> None:
        """Read the data and open the model. Raises what `ByPrompt` raises, and:

        Raises:
            ArtifactError: the encoder is not a masked language model.
            ParamsError: a label has no words, a word is not one known token, or the prompt is too long.
        """
        super().__init__(inputs)
        self._word_ids = word_ids(self.labels, self.zero.label_words, self.opened)

    def built(self, inputs: TaskInputs) -> heads.TaskModel:
        return cloze.build(inputs.encoder, inputs.family)

    def scores(self, texts: Sequence[str]) -> Scores:
        rows = self.rows(texts)
        score_TC = np.zeros((len(rows), len(self.labels)), dtype=np.float32)
        filled = partial(cloze.log_probabilities, mask_id=self.opened.special_ids.mask)
        # Batches are as large as in training, because each row has a logit for every token of the vocabulary.
        batches = sorted_batches(rows.length_T, self.params.batch_size)
        for rows_B, log_BV in answers(self.model, batches, rows.encoded, filled):
            for label, ids_W in enumerate(self._word_ids):
                score_TC[rows_B, label] = log_BV[:, ids_W].mean(dim=1).cpu().numpy()
        return score_TC

    def rows(self, texts: Sequence[str]) -> TextRows:
        """Return the rows of the texts followed by the prompt."""
        return prompted(texts, self.zero.prompt, self.opened, self.zero.max_length)

    def lengths(self, texts: Texts, labels: Collection[str], opened: OpenTokenizer) -> Ids:
        return prompted_lengths(texts.first, self.zero.prompt, opened, self.zero.max_length)
