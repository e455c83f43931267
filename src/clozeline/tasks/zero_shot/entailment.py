"""Zero-shot classification by entailment: does the prompt, filled with a label's words, follow from the text?
(Yin, Hay & Roth 2019, section 4.2)

Shapes: T texts, B rows of a batch, C classes.
"""

import shutil
import tempfile
import weakref
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from clozeline.errors import ParamsError
from clozeline.params import ZeroShotParams
from clozeline.params.finetuning.zero_shot import BLANK
from clozeline.tasks import heads
from clozeline.tasks.classification.baselines import Texts
from clozeline.tasks.opening import answers, measuring_batches
from clozeline.tasks.published import folder_of
from clozeline.tasks.task import InputsOf, TaskInputs
from clozeline.tasks.text_rows import Ids, TextRows, lengths_of
from clozeline.tasks.zero_shot import entailer
from clozeline.tasks.zero_shot.by_prompt import ByPrompt, Scores
from clozeline.tokenizer.folder import OpenTokenizer, save_existing


class Entailment(ByPrompt):
    """Classifier by the mean logit of entailment over a label's words, from a model of natural language inference."""

    method = "zero-shot entailment model"

    def __init__(self, inputs: InputsOf[ZeroShotParams]) -> None:
        """Read the data and open the model that `entailment` names. Raises what `ByPrompt` raises, and:

        Raises:
            ArtifactError: the model is missing, or has no label of entailment.
            ParamsError: a label has no words, or a filled prompt is longer than half of `max_length`.
        """
        params = inputs.params
        assert params.entailment is not None
        folder = Path(tempfile.mkdtemp())
        weakref.finalize(self, shutil.rmtree, folder)
        _gather(folder_of(params.entailment.model, params.entailment.revision, "`entailment.model`"), folder)
        super().__init__(replace(inputs, encoder=folder))
        self._with_types = heads.tells_pairs_apart(self.model)
        self._filled = [self._prompts_of(label) for label in self.labels]
        self._longest_prompt(self.labels, self.opened)  # raises before the model runs

    def built(self, inputs: TaskInputs) -> heads.TaskModel:
        return entailer.build(inputs.encoder)

    def scores(self, texts: Sequence[str]) -> Scores:
        score_TC = np.zeros((len(texts), len(self.labels)), dtype=np.float32)
        for label, prompts in enumerate(self._filled):
            for prompt in prompts:
                score_TC[:, label] += self._follows(texts, prompt) / len(prompts)
        return score_TC

    def lengths(self, texts: Texts, labels: Collection[str], opened: OpenTokenizer) -> Ids:
        return lengths_of(texts.first, opened, [self._longest_prompt(labels, opened)] * len(texts))

    def _follows(self, texts: Sequence[str], prompt: str) -> Scores:
        """Return `logit_T` of entailment of one prompt by each text."""
        seconds = [prompt] * len(texts)
        rows = TextRows.encode(texts, self.opened, self.zero.max_length, seconds=seconds)
        encoded = partial(rows.encoded, with_types=self._with_types)
        logit_T = np.zeros(len(texts), dtype=np.float32)
        batches = measuring_batches(rows.length_T, self.inputs)
        for rows_B, logit_B in answers(self.model, batches, encoded, entailer.entailment_logits):
            logit_T[rows_B] = logit_B.cpu().numpy()
        return logit_T

    def _prompts_of(self, label: str) -> list[str]:
        words = [label] if self.zero.label_words is None else self.zero.label_words.get(label, ())
        if not words:
            raise ParamsError(
                f"label `{label}` of the task has no words to fill into the prompt",
                do=f"add them: `label_words: {{{label}: [PHRASE, …], …}}`",
            )
        return [self.zero.prompt.replace(BLANK, word) for word in words]

    def _longest_prompt(self, labels: Collection[str], opened: OpenTokenizer) -> str:
        """Return the longest prompt of `labels`. If a pair is too long, its longer text is cut; so a prompt of at most
        half of `max_length` stays whole.

        Raises:
            ParamsError: the prompt is longer than that.
        """
        prompts = ["", *(prompt for label in labels for prompt in self._prompts_of(label))]
        length_P = lengths_of(prompts, opened)
        longest = int(length_P.argmax())
        if 2 * length_P[longest] <= self.zero.max_length:
            return prompts[longest]
        raise ParamsError(
            f"`prompt` of the task has {length_P[longest]} tokens, over half of `max_length: {self.zero.max_length}`",
            do="shorten `prompt` or `label_words`, or raise `max_length`",
        )


def _gather(place: Path, folder: Path) -> None:
    """Fill `folder` with links to the model in `place`, and with its tokenizer in the format of this package."""
    for pattern in ("config.json", "*.safetensors", "*.safetensors.index.json"):
        for file in place.glob(pattern):
            (folder / file.name).symlink_to(file.resolve())
    save_existing(str(place), folder)
