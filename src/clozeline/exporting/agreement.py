"""How often INT8 answers as fp32 does, on real texts.

C classes, H hidden, L tokens, M masks, T texts, V vocabulary.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from clozeline.inference.classifier import Classifier
from clozeline.inference.encoder import Encoder
from clozeline.inference.open_model import OpenModel
from clozeline.inference.tokenization import TokenizedText
from clozeline.progress import track

Value = TypeVar("Value", bound=np.generic)

MASK_RATE = 0.15
"""Share of a text's tokens that are masked to be guessed (Devlin et al. 2018, section 3.1)."""


@dataclass(frozen=True)
class Agreement:
    """Items are masked tokens of an encoder, texts of a classifier."""

    num_items: int
    top1_agreement: float
    """Share of items for which both graphs name the same likeliest answer."""
    fp32_top1: float | None = None
    """Share of masked tokens for which the encoder names the token that was there."""
    int8_top1: float | None = None
    embedding_cosine_mean: float | None = None
    embedding_cosine_min: float | None = None


def agreement(fp32: OpenModel, int8: OpenModel, texts: Sequence[str]) -> Agreement:
    """Compare two graphs of one package on `texts`, each cut to what the model reads.

    An encoder guesses the tokens of `hidden_places`, and embeds the texts with nothing hidden.
    """
    if isinstance(fp32, Encoder) and isinstance(int8, Encoder):
        return _encoder_agreement(fp32, int8, fp32.tokenize(texts, truncate=True))
    assert isinstance(fp32, Classifier)
    assert isinstance(int8, Classifier)
    return _classifier_agreement(fp32, int8, fp32.tokenize(texts, truncate=True))


def _encoder_agreement(fp32: Encoder, int8: Encoder, texts: Sequence[TokenizedText]) -> Agreement:
    specials = fp32.manifest.special_tokens
    assert specials.mask_id is not None
    places = [hidden_places(text.ids_L, specials.ids) for text in texts]
    masked = [_masked(text, place, specials.mask_id) for text, place in zip(texts, places, strict=True)]
    true_ids = np.concatenate([text.ids_L[place] for text, place in zip(texts, places, strict=True)])
    fp32_ids, int8_ids = _likeliest(fp32, masked, "fp32"), _likeliest(int8, masked, "INT8")
    cosines_T = (_embeddings(fp32, texts, "fp32") * _embeddings(int8, texts, "INT8")).sum(axis=1)
    return Agreement(
        num_items=len(true_ids),
        top1_agreement=_share(fp32_ids == int8_ids),
        fp32_top1=_share(fp32_ids == true_ids),
        int8_top1=_share(int8_ids == true_ids),
        embedding_cosine_mean=float(cosines_T.mean()),
        embedding_cosine_min=float(cosines_T.min()),
    )


def _classifier_agreement(fp32: Classifier, int8: Classifier, texts: Sequence[TokenizedText]) -> Agreement:
    fp32_T, int8_T = (
        np.stack(_in_order(model.logits(texts), f"Labels by {name}", len(texts))).argmax(axis=1)
        for model, name in ((fp32, "fp32"), (int8, "INT8"))
    )
    return Agreement(num_items=len(texts), top1_agreement=_share(fp32_T == int8_T))


def hidden_places(ids_L: npt.NDArray[np.int64], special_ids: Sequence[int]) -> npt.NDArray[np.int64]:
    """Which tokens of a text to mask: a function of the text alone, about `MASK_RATE` of them and at least one.

    Special tokens are never chosen; a text of nothing else gives none.
    """
    candidates = np.flatnonzero(~np.isin(ids_L, special_ids))
    wanted = math.ceil(MASK_RATE * len(candidates))
    content = ids_L.tobytes()
    drawn = sorted(candidates, key=lambda place: hashlib.blake2b(content + b"%d" % place, digest_size=8).digest())
    return np.sort(np.array(drawn[:wanted], dtype=np.int64))


def _masked(text: TokenizedText, places: npt.NDArray[np.int64], mask_id: int) -> TokenizedText:
    ids_L = text.ids_L.copy()
    ids_L[places] = mask_id
    return replace(text, ids_L=ids_L)


def _likeliest(model: Encoder, masked: Sequence[TokenizedText], name: str) -> npt.NDArray[np.int64]:
    # The logits of all masks together would not fit in memory.
    answers = ((position, logits_MV.argmax(axis=-1)) for position, logits_MV in model.logits_at_masks(masked))
    return np.concatenate(_in_order(answers, f"Masked tokens by {name}", len(masked)))


def _embeddings(model: Encoder, texts: Sequence[TokenizedText], name: str) -> npt.NDArray[np.float32]:
    return np.stack(_in_order(model.embeddings(texts), f"Embeddings by {name}", len(texts)))


def _in_order(answers: Iterator[tuple[int, npt.NDArray[Value]]], what: str, total: int) -> list[npt.NDArray[Value]]:
    return [value for _, value in sorted(track(answers, what, total), key=lambda answer: answer[0])]


def _share(same: npt.NDArray[np.bool_]) -> float:
    return float(same.mean())
