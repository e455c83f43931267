"""What a graph answers to texts whose tokens are hidden by a rule, in an order that can be compared.

A answers (masked tokens of an encoder, texts of a classifier, …), H hidden, L tokens, T texts, V vocabulary, classes
or tags.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from clozeline.inference.answerer import ENDS
from clozeline.inference.batching import Batch
from clozeline.inference.embedder import Embedder
from clozeline.inference.encoder import TOP, Encoder
from clozeline.inference.open_model import OpenModel
from clozeline.inference.question import Rows
from clozeline.inference.tokenization import TokenizedText

MASK_RATE = 0.15
"""Share of a text's tokens that are masked to be guessed (Devlin et al. 2018, section 3.1)."""

UNKNOWN = -1
"""In place of what is right, where nobody knows."""


@dataclass(frozen=True)
class Answers:
    """The answers of a text follow each other; texts are in the order that they were given in."""

    top1_A: npt.NDArray[np.int64]
    """The likeliest token of each mask, label of each text, or second half for each first half; or what a `Reader`
    reads."""
    embeddings_TH: npt.NDArray[np.float32] | None
    """Of length 1; a classifier has none."""


Reader = Callable[[int, Rows], npt.NDArray[np.int64]]
"""From the place of a text in an exam, and what a graph says of it, to its answers."""


def likeliest(position: int, rows: Rows) -> npt.NDArray[np.int64]:
    """The place of the largest logit."""
    return np.atleast_1d(rows.argmax(axis=-1))


def named_first(position: int, rows: Rows) -> npt.NDArray[np.int64]:
    """The token that the graph itself names as the likeliest of each mask, of `TOP`."""
    return rows[:, 0, 0].astype(np.int64)


def answers(model: OpenModel, grouped: Iterable[Batch], read: Reader = likeliest) -> Answers:
    """What `model` answers to the batches `grouped`, which have each text once, as `read` reads it.

    A graph is run as it is when it serves: where it is asked for words alone, other products are in the batch than
    where embeddings are wanted, so that an encoder is asked twice. Its embeddings are those of the texts as they are
    given, masks among them.
    """
    if isinstance(model, Embedder) and not isinstance(model, Encoder):
        return _nearest(model, grouped)
    batches, output = list(grouped), TOP if isinstance(model, Encoder) else model.main_output
    top1: dict[int, npt.NDArray[np.int64]] = {}
    for batch, (values,) in model.run_batches(batches, output):
        # What is said of all texts together would not fit in memory.
        for position, of_text in zip(batch.positions, model.split(batch, output, values), strict=True):
            top1[position] = read(position, of_text)
    embeddings_TH = _embeddings(model, batches) if isinstance(model, Encoder) else None
    return Answers(np.concatenate([top1[position] for position in sorted(top1)]), embeddings_TH)


def _nearest(model: Embedder, grouped: Iterable[Batch]) -> Answers:
    """Texts are `halves`: of each first one the nearest second one."""
    embeddings_TH = _embeddings(model, grouped)
    return Answers((embeddings_TH[::2] @ embeddings_TH[1::2].T).argmax(axis=1), embeddings_TH)


def _embeddings(model: Embedder, grouped: Iterable[Batch]) -> npt.NDArray[np.float32]:
    vectors: dict[int, npt.NDArray[np.float32]] = {}
    for batch, (embeddings_BH,) in model.run_batches(grouped, "sentence_embedding"):
        vectors.update(zip(batch.positions, embeddings_BH, strict=True))
    return np.stack([vectors[position] for position in sorted(vectors)])


def logits(model: OpenModel, texts: Sequence[TokenizedText]) -> Iterator[npt.NDArray[np.float32]]:
    """`logits_AV` of each text, shorter ones first; of an encoder without a head, its embedding. Where an answer points
    at a token, V are the tokens.
    """
    output = model.main_output
    for batch, (values,) in model.run_batches(model.batches(texts), output):
        for of_text in model.split(batch, output, values):
            yield of_text.T if output == ENDS else np.atleast_2d(of_text)


@dataclass(frozen=True)
class Hidden:
    """A text whose tokens are hidden, and what they were."""

    text: TokenizedText
    true_ids_M: npt.NDArray[np.int64]
    """UNKNOWN where the text has a mask of its own, such as one that is about models like these."""


def hide(text: TokenizedText, model: Encoder) -> Hidden:
    """Mask the tokens of `hidden_places`."""
    specials = model.manifest.special_tokens
    assert specials.mask_id is not None
    places = hidden_places(text.ids_L, specials.ids)
    ids_L = text.ids_L.copy()
    ids_L[places] = specials.mask_id
    true_ids_M = text.ids_L[ids_L == specials.mask_id]
    return Hidden(replace(text, ids_L=ids_L), np.where(true_ids_M == specials.mask_id, UNKNOWN, true_ids_M))


def as_asked(model: OpenModel, texts: Sequence[str]) -> Sequence[TokenizedText]:
    """`texts` as a model of this task is asked about them: with tokens hidden, if that is what it fills."""
    if isinstance(model, Encoder):
        return [hide(text, model).text for text in model.tokenize(texts, truncate=True)]
    return model.usual(texts).texts


def halves(texts: Sequence[TokenizedText], special_ids: Sequence[int]) -> list[TokenizedText]:
    """The first and the second half of each text of two tokens or more, in turns: a first half is to find its own
    second half among all. Special tokens are in both.
    """
    parts = []
    for text in texts:
        places = np.flatnonzero(~np.isin(text.ids_L, special_ids))
        middle = len(places) // 2
        if middle:
            parts += [TokenizedText(np.delete(text.ids_L, cut), ()) for cut in (places[middle:], places[:middle])]
    return parts


def hidden_places(ids_L: npt.NDArray[np.int64], special_ids: Sequence[int]) -> npt.NDArray[np.int64]:
    """Which tokens of a text to mask: a function of the text alone, about `MASK_RATE` of them and at least one.

    Special tokens are never chosen; a text of nothing else gives none.
    """
    candidates = np.flatnonzero(~np.isin(ids_L, special_ids))
    wanted = math.ceil(MASK_RATE * len(candidates))
    content = ids_L.tobytes()
    drawn = sorted(candidates, key=lambda place: hashlib.blake2b(content + b"%d" % place, digest_size=8).digest())
    return np.sort(np.array(drawn[:wanted], dtype=np.int64))
