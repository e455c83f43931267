"""Zero-shot classification: one label for each text, chosen by an untrained model from a prompt after the text.

Either the pre-trained model fills a word into the prompt (Schick & Schuetze 2021), or a model of entailment says
whether the prompt, filled with a label's words, follows from the text (Yin, Hay & Roth 2019, section 4.2).

Shapes: T texts, B rows of a batch, C classes, V vocabulary, W words of a label.
"""

import logging
import shutil
import tempfile
import weakref
from abc import abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from clozeline.params.tasks import BLANK, ZeroShotParams
from clozeline.system.errors import ParamsError
from clozeline.tasks import heads, task
from clozeline.tasks.classification.data import ClassifiedRows
from clozeline.tasks.classification.scores import TextsOrPairs
from clozeline.tasks.classification.texts import SingleLabel
from clozeline.tasks.heads import folder_of
from clozeline.tasks.rows import Ids, TextRows, lengths_of, sorted_batches
from clozeline.tokenizing.tokenizer.folder import OpenTokenizer, is_byte_level, save_existing

_LOG = logging.getLogger(__name__)
Scores = npt.NDArray[np.float32]
_NO_TEXT = ""


class ByPrompt(SingleLabel):
    """Classifier by prompt, measured like any single-label classifier; only the baseline uses the training texts."""

    def __init__(self, inputs: task.InputsOf[ZeroShotParams]) -> None:
        """Read the data and open the model. Raises what `ClassifierOnTexts` raises."""
        super().__init__(inputs)
        self.batches_per_epoch, self.trained_on = 0, ()
        if without_text := self.params.named_labels - self.splits.every_label:
            _LOG.warning(
                "`label_words` has labels that no text of the task has, so that these answers are always wrong: %s; "
                "check their spelling",
                ", ".join(sorted(without_text)),
            )

    def num_truncated(self, part: ClassifiedRows) -> int:
        return int((self.lengths(part.texts, self.labels, self.opened) > self.params.max_length).sum())

    def logits(self, part: ClassifiedRows) -> Scores:
        """Return `logits_TC`: the score of each label; if calibrated, minus its score without a text (domain
        conditional PMI, Holtzman et al. 2021, section 3).
        """
        logits_TC = self.scores(part.texts.first)
        return logits_TC - self.scores([_NO_TEXT]) if self.params.calibrated else logits_TC

    @abstractmethod
    def scores(self, texts: Sequence[str]) -> Scores:
        """Return `score_TC` of each label's words in the prompt after each text."""

    def words_of(self, label: str) -> Sequence[str]:
        return [label] if self.params.label_words is None else self.params.label_words.get(label, ())


def prompted(texts: Sequence[str], prompt: str, opened: OpenTokenizer, max_length: int) -> TextRows:
    """Return rows of each text followed by the whole prompt; a long text is cut, an empty text leaves the prompt alone.

    Raises:
        ParamsError: the prompt leaves no room for a text.
    """
    ids, tail = opened.special_ids, _tail(prompt, opened, max_length)
    room = max_length - len(tail) - 1
    opened.tokenizer.no_truncation()
    encodings = opened.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    ids_T = tuple(np.array([ids.cls, *encoding.ids[:room], *tail], dtype=np.int64) for encoding in encodings)
    return TextRows(ids_T, ids.pad, sum(len(encoding.ids) > room for encoding in encodings))


def _tail(prompt: str, opened: OpenTokenizer, max_length: int) -> list[int]:
    """Return the tokens after a text: the prompt with a mask for its blank, and the separator."""
    before, _, after = prompt.partition(BLANK)
    tail = [*_tokens(before, opened), opened.special_ids.mask, *_tokens(after, opened), opened.special_ids.sep]
    if len(tail) + 1 < max_length:
        return tail
    raise ParamsError(
        f"`prompt` of the task has {len(tail)} tokens and leaves no room for a text: `max_length` is {max_length}",
        do="shorten `prompt`, or raise `max_length`",
    )


def _tokens(text: str, opened: OpenTokenizer) -> list[int]:
    ids: list[int] = opened.tokenizer.encode(text, add_special_tokens=False).ids
    return ids


class Cloze(ByPrompt):
    """Classifier by the mean log-probability of a label's words in the blank."""

    method = "zero-shot encoder with a prompt"

    def __init__(self, inputs: task.InputsOf[ZeroShotParams]) -> None:
        """Read the data and open the model. Raises what `ByPrompt` raises, and:

        Raises:
            ArtifactError: the encoder is not a masked language model.
            ParamsError: a label has no words, a word is not one known token, or the prompt is too long.
        """
        super().__init__(inputs)
        self._word_ids = [self._ids_of(label) for label in self.labels]

    def built(self, inputs: task.TaskInputs) -> heads.TaskModel:
        return heads.build_cloze(inputs.encoder, inputs.family)

    def scores(self, texts: Sequence[str]) -> Scores:
        rows = prompted(texts, self.params.prompt, self.opened, self.params.max_length)
        score_TC = np.zeros((len(rows), len(self.labels)), dtype=np.float32)
        filled = partial(heads.log_probabilities, mask_id=self.opened.special_ids.mask)
        # Batches are as large as in training, because each row has a logit for every token of the vocabulary.
        batches = sorted_batches(rows.length_T, self.params.batch_size)
        for rows_B, log_BV in task.answers(self.model, batches, rows.encoded, filled):
            for label, ids_W in enumerate(self._word_ids):
                score_TC[rows_B, label] = log_BV[:, ids_W].mean(dim=1).cpu().numpy()
        return score_TC

    def lengths(self, texts: TextsOrPairs, labels: Collection[str], opened: OpenTokenizer) -> Ids:
        """Return `length_T`: tokens of each whole text followed by the prompt. Raises what `prompted` raises."""
        tail = _tail(self.params.prompt, opened, self.params.max_length)
        return lengths_of(texts.first, opened, has_special_ids=False) + 1 + len(tail)

    def _ids_of(self, label: str) -> Ids:
        """Return the tokens of a label's words.

        Raises:
            ParamsError: the label has no words, or a word is not one known token.
        """
        space, words = " " if is_byte_level(self.opened.tokenizer) else "", self.words_of(label)
        tokens = [_tokens(f"{space}{word}", self.opened) for word in words]
        special = self.opened.special_ids.every
        wrong = [word for word, ids in zip(words, tokens, strict=True) if len(ids) != 1 or ids[0] in special]
        if wrong or not words:
            raise ParamsError(
                f"words of label `{label}` of the task cannot be filled in as one token: {', '.join(wrong) or 'none'}",
                do=f"name others: `label_words: {{{label}: [WORD, …], …}}`",
            )
        return np.array([ids[0] for ids in tokens], dtype=np.int64)


class Entailment(ByPrompt):
    """Classifier by the mean logit of entailment over a label's words, from a model of natural language inference."""

    method = "zero-shot entailment model"

    def __init__(self, inputs: task.InputsOf[ZeroShotParams]) -> None:
        """Read the data and open the model that `entailment` names. Raises what `ByPrompt` raises, and:

        Raises:
            ArtifactError: the model is missing, or has no label of entailment.
            ParamsError: a label has no words, or a filled prompt is longer than half of `max_length`.
        """
        entailment = inputs.params.entailment
        assert entailment is not None
        folder = Path(tempfile.mkdtemp())
        weakref.finalize(self, shutil.rmtree, folder)
        _gather(folder_of(entailment.model, entailment.revision, "`entailment.model`"), folder)
        super().__init__(replace(inputs, encoder=folder))
        self._filled = [self._prompts_of(label) for label in self.labels]
        self._longest_prompt(self.labels, self.opened)  # raises before the model runs

    def built(self, inputs: task.TaskInputs) -> heads.TaskModel:
        return heads.build_entailer(inputs.encoder)

    def scores(self, texts: Sequence[str]) -> Scores:
        score_TC = np.zeros((len(texts), len(self.labels)), dtype=np.float32)
        with_types = heads.tells_pairs_apart(self.model)
        for label, prompts in enumerate(self._filled):
            for prompt in prompts:
                rows = TextRows.encode(texts, self.opened, self.params.max_length, seconds=[prompt] * len(texts))
                logit_T = self.outputs(rows, heads.entailment_logits, with_types=with_types)
                score_TC[:, label] += logit_T / len(prompts)
        return score_TC

    def lengths(self, texts: TextsOrPairs, labels: Collection[str], opened: OpenTokenizer) -> Ids:
        return lengths_of(texts.first, opened, [self._longest_prompt(labels, opened)] * len(texts))

    def _prompts_of(self, label: str) -> list[str]:
        words = self.words_of(label)
        if not words:
            raise ParamsError(
                f"label `{label}` of the task has no words to fill into the prompt",
                do=f"add them: `label_words: {{{label}: [PHRASE, …], …}}`",
            )
        return [self.params.prompt.replace(BLANK, word) for word in words]

    def _longest_prompt(self, labels: Collection[str], opened: OpenTokenizer) -> str:
        """Return the longest prompt of `labels`. If a pair is too long, its longer text is cut; so a prompt of at most
        half of `max_length` stays whole.

        Raises:
            ParamsError: the prompt is longer than that.
        """
        prompts = ["", *(prompt for label in labels for prompt in self._prompts_of(label))]
        length_P = lengths_of(prompts, opened)
        longest = int(length_P.argmax())
        if 2 * length_P[longest] <= self.params.max_length:
            return prompts[longest]
        raise ParamsError(
            f"`prompt` of the task has {length_P[longest]} tokens, over half of `max_length: {self.params.max_length}`",
            do="shorten `prompt` or `label_words`, or raise `max_length`",
        )


def _gather(place: Path, folder: Path) -> None:
    """Fill `folder` with links to the model in `place`, and with its tokenizer in the format of this package."""
    for pattern in ("config.json", "*.safetensors", "*.safetensors.index.json"):
        for file in place.glob(pattern):
            (folder / file.name).symlink_to(file.resolve())
    save_existing(str(place), folder)
