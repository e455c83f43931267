"""Answers of a graph to the texts of an exam, in a fixed order, so that two graphs can be compared.

Shapes: A answers (masked tokens of an encoder, texts of a classifier, …), H hidden, L tokens, T texts, V vocabulary,
classes or tags.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from clozeline.inference.answerer import ENDS
from clozeline.inference.batching import Batch
from clozeline.inference.encoder import Encoder
from clozeline.inference.open_model import OpenModel
from clozeline.inference.question import Rows
from clozeline.inference.tokenization import TokenizedText

MASK_RATE = 0.15
"""Share of a text's tokens that are masked (Devlin et al. 2018, section 3.1)."""

BEGINNINGS = 4
"""Most beginnings of a text after which a causal model predicts the next token; each is a text of the exam."""

UNKNOWN = -1
"""Marks an answer without a label."""


@dataclass(frozen=True)
class Answers:
    """Answers grouped by text; texts are in the order given."""

    top1_A: npt.NDArray[np.int64]
    """Answers that a `Reader` takes from the output, or an exam from the embeddings."""
    embeddings_TH: npt.NDArray[np.float32] | None = None
    """Embeddings of length 1 of the texts as given, masks included; None for a model that does not embed."""


Reader = Callable[[int, Rows], npt.NDArray[np.int64]]
"""Function from the index of a text in an exam and the graph's output for it to its answers."""


def likeliest(position: int, rows: Rows) -> npt.NDArray[np.int64]:
    """Return the index of the largest logit."""
    return np.atleast_1d(rows.argmax(axis=-1))


def named_first(position: int, rows: Rows) -> npt.NDArray[np.int64]:
    """Return the first token of `TOP` at each position: the likeliest one according to the graph itself."""
    return rows.reshape(-1, rows.shape[-2], 2)[:, 0, 0].astype(np.int64)


def answers(model: OpenModel, grouped: Iterable[Batch], read: Reader, output: str) -> npt.NDArray[np.int64]:
    """Return `answer_A` of `model` to the batches `grouped`, which hold each text once; `read` interprets `output`."""
    answers: dict[int, npt.NDArray[np.int64]] = {}
    for batch, (values,) in model.run_batches(grouped, output):
        # The outputs for all texts together would not fit in memory.
        for position, of_text in zip(batch.positions, model.split(batch, output, values), strict=True):
            answers[position] = read(position, of_text)
    return np.concatenate([answers[position] for position in sorted(answers)])


def embeddings(model: OpenModel, grouped: Iterable[Batch]) -> npt.NDArray[np.float32]:
    vectors: dict[int, npt.NDArray[np.float32]] = {}
    for batch, (embeddings_BH,) in model.run_batches(grouped, "sentence_embedding"):
        vectors.update(zip(batch.positions, embeddings_BH, strict=True))
    return np.stack([vectors[position] for position in sorted(vectors)])


def logits(model: OpenModel, texts: Sequence[TokenizedText]) -> Iterator[npt.NDArray[np.float32]]:
    """Yield `logits_AV` of each text, short texts first; for an encoder without a head, the embedding.

    V counts the tokens of the text where an answer points at a token.
    """
    output = model.main_output
    for batch, (values,) in model.run_batches(model.batches(texts), output):
        for of_text in model.split(batch, output, values):
            yield of_text.T if output == ENDS else np.atleast_2d(of_text)


@dataclass(frozen=True)
class Hidden:
    """A text with hidden tokens, and their true ids."""

    text: TokenizedText
    true_ids_M: npt.NDArray[np.int64]
    """Ids of the masked tokens; UNKNOWN where the text itself contains the mask token."""


def hide(text: TokenizedText, model: Encoder) -> Hidden:
    """Mask the tokens at `hidden_places`."""
    specials = model.manifest.special_tokens
    assert specials.mask_id is not None
    places = hidden_places(text.ids_L, specials.ids)
    ids_L = text.ids_L.copy()
    ids_L[places] = specials.mask_id
    true_ids_M = text.ids_L[ids_L == specials.mask_id]
    return Hidden(replace(text, ids_L=ids_L), np.where(true_ids_M == specials.mask_id, UNKNOWN, true_ids_M))


def beginnings(text: TokenizedText, special_ids: Sequence[int]) -> list[tuple[TokenizedText, int]]:
    """Return up to `BEGINNINGS` beginnings of `text`, each with the token after it.

    The tokens are chosen as for masking, then evenly from the first to the last. A token without one before it, special
    tokens included, is never chosen.
    """
    places = [int(place) for place in hidden_places(text.ids_L, special_ids) if place]
    steps = np.linspace(0, len(places) - 1, min(BEGINNINGS, len(places))).round().astype(int)
    return [(TokenizedText(text.ids_L[: places[step]], ()), int(text.ids_L[places[step]])) for step in steps]


def as_asked(model: OpenModel, texts: Sequence[str]) -> Sequence[TokenizedText]:
    """Return `texts` as the input of a model of this task: with hidden tokens if it fills masks."""
    if isinstance(model, Encoder):
        return [hide(text, model).text for text in model.tokenize(texts, truncate=True)]
    return model.usual(texts).texts


def halves(texts: Sequence[TokenizedText], special_ids: Sequence[int]) -> list[TokenizedText]:
    """Return the first and the second half of each text of at least two tokens, alternating.

    A first half has to find its own second half among all. Special tokens are in both.
    """
    parts = []
    for text in texts:
        places = np.flatnonzero(~np.isin(text.ids_L, special_ids))
        middle = len(places) // 2
        if middle:
            parts += [TokenizedText(np.delete(text.ids_L, cut), ()) for cut in (places[middle:], places[:middle])]
    return parts


def hidden_places(ids_L: npt.NDArray[np.int64], special_ids: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return the indices of the tokens to mask: about `MASK_RATE` of them, at least one, chosen by the text alone.

    Special tokens are never chosen; a text of special tokens alone gives none.
    """
    candidates = np.flatnonzero(~np.isin(ids_L, special_ids))
    wanted = math.ceil(MASK_RATE * len(candidates))
    content = ids_L.tobytes()
    drawn = sorted(candidates, key=lambda place: hashlib.blake2b(content + b"%d" % place, digest_size=8).digest())
    return np.sort(np.array(drawn[:wanted], dtype=np.int64))
