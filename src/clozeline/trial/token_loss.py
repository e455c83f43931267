"""Loss of a language model's package over whole texts: every known token is a target once.

A token is hidden, or the model reads the text before it.

Unknown tokens are charged as in evaluation/figures.py: ln 256 nats for each of their bytes.

Shapes: T texts, L tokens of a window, M targets, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from clozeline.artifacts.evaluate.encoder_metrics import NATS_PER_UNKNOWN_BYTE
from clozeline.inference.encoder import Encoder
from clozeline.inference.language_model import LanguageModel
from clozeline.inference.tokenization import TokenizedText, Window

NUM_FOLDS = 7
"""Passes over a text; a pass hides every seventh token, about the share that BERT hides in training."""


@dataclass(frozen=True)
class TextLosses:
    """Loss by text."""

    nats_T: npt.NDArray[np.float64]
    """Loss of the targets, and the charge for unknown tokens."""
    bytes_T: npt.NDArray[np.int64]
    num_tokens: int
    """Number of tokens, without special ones."""
    num_targets: int


def losses_of(model: LanguageModel, texts: Sequence[str], *, longest: int) -> TextLosses:
    """Return the losses of the graph that `model` has open. A text is read in rows of at most `longest` tokens."""
    windows = model.tokenizer.windows(texts, longest=min(longest, model.manifest.max_length), overlap=0)
    bytes_T = np.array([len(text.encode()) for text in texts], dtype=np.int64)
    nats_T, unknown_T = np.zeros(len(texts)), np.zeros(len(texts), dtype=np.int64)
    num_tokens = num_targets = 0
    for window in windows:
        unknown_T[window.number] += model.count_unknown(window.read)
        num_tokens += len(_content(model, window.read))
    asked_of = _folds if isinstance(model, Encoder) else _beginnings
    asked = [(window.number, text, true_M) for window in windows for text, true_M in asked_of(model, window)]
    for batch, logits_MV in model.run([text for _, text, _ in asked], "logits"):
        for position, of_text in zip(batch.positions, model.split(batch, "logits", logits_MV), strict=True):
            number, _, true_M = asked[position]
            rows_MV, is_target_M = np.atleast_2d(of_text), true_M >= 0
            nats_T[number] += _nats(rows_MV[is_target_M], true_M[is_target_M])
            num_targets += int(is_target_M.sum())
    bytes_per_token = bytes_T.sum() / max(num_tokens, 1)
    nats_T += NATS_PER_UNKNOWN_BYTE * bytes_per_token * unknown_T
    return TextLosses(nats_T, bytes_T, num_tokens, num_targets)


def _folds(model: LanguageModel, window: Window) -> Iterator[tuple[TokenizedText, npt.NDArray[np.int64]]]:
    """Yield a window once for each fold, with the tokens of the fold hidden, and the true id at each mask.

    The id is -1 at a mask that is part of the text.
    """
    mask_id, ids_L = model.manifest.special_tokens.mask_id, window.read.ids_L
    assert mask_id is not None, "a model that fills masks has a mask token"
    targets = _targets(model, window.read)
    for fold in range(NUM_FOLDS):
        places = targets[targets % NUM_FOLDS == fold]
        if len(places):
            shown_L = ids_L.copy()
            shown_L[places] = mask_id
            true_L = np.full(len(ids_L), -1, dtype=np.int64)
            true_L[places] = ids_L[places]
            yield replace(window.read, ids_L=shown_L), true_L[shown_L == mask_id]


def _beginnings(model: LanguageModel, window: Window) -> Iterator[tuple[TokenizedText, npt.NDArray[np.int64]]]:
    """Yield the part of a window before each target, with the id of the target."""
    ids_L = window.read.ids_L
    for place in _targets(model, window.read):
        if place:
            yield TokenizedText(ids_L[:place], ()), ids_L[place : place + 1]


def _targets(model: LanguageModel, text: TokenizedText) -> npt.NDArray[np.int64]:
    """Return the positions of the known text tokens."""
    content, unknown_id = _content(model, text), model.tokenizer.unknown_id
    return content if unknown_id is None else content[text.ids_L[content] != unknown_id]


def _content(model: LanguageModel, text: TokenizedText) -> npt.NDArray[np.int64]:
    """Return the positions of the text tokens: all but special and unknown ones."""
    special = [id_ for id_ in model.manifest.special_tokens.ids if id_ != model.tokenizer.unknown_id]
    return np.flatnonzero(~np.isin(text.ids_L, special))


def _nats(logits_MV: npt.NDArray[np.float32], true_M: npt.NDArray[np.int64]) -> float:
    """Return the summed cross-entropy of the true ids."""
    if not len(true_M):
        return 0.0
    largest_M1 = logits_MV.max(axis=1, keepdims=True)
    log_sum_M = np.log(np.exp(logits_MV - largest_M1).sum(axis=1, dtype=np.float64)) + largest_M1[:, 0]
    return float((log_sum_M - logits_MV[np.arange(len(true_M)), true_M]).sum())
