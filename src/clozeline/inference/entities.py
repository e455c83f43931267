"""Grouping of tagged tokens into entities, as in transformers' token-classification pipeline.

Shapes: T tokens of a text, C tags.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np
import numpy.typing as npt

Aggregation = Literal["none", "simple", "first", "average", "max"]
"""`none` gives single tokens, `simple` groups neighbours of one type. The others tag whole words: by the first token,
by the mean of the tokens' scores, or by the token with the largest score.
"""
OUTSIDE = "O"
Joined = Callable[[Sequence[str]], str]


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """One token of a text with the probability of each tag."""

    text: str
    index: int
    """Position of the token in the text as the model reads it, including special tokens."""
    start: int
    end: int
    continues_word: bool
    score_C: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TaggedToken:
    """Answer without aggregation, with the fields of Hugging Face's token-classification task."""

    entity: str
    score: float
    index: int
    word: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Entity:
    """Answer with aggregation, with the fields of Hugging Face's token-classification task."""

    entity_group: str
    score: float
    """Mean probability of the tags of its tokens or words."""
    word: str
    start: int
    """First character of the entity in the text."""
    end: int


Tagged = list[TaggedToken] | list[Entity]


def aggregated(
    tokens: Sequence[ScoredToken],
    tags: Sequence[str],
    strategy: Aggregation,
    joined: Joined,
    ignored: Collection[str] = (OUTSIDE,),
) -> Tagged:
    """Return the tagged tokens (strategy `none`) or the entities, without those whose tag or type is `ignored`.

    Args:
        tokens: tokens of one text, in order.
        tags: names of the tags, in the order of the scores.
        strategy: how tokens are grouped.
        joined: function that joins tokens to readable text.
        ignored: tags for `none`, otherwise types without B- or I-.
    """
    of_words = [_of_word(word, tags, strategy, joined) for word in _words(tokens, strategy)]
    if strategy == "none":
        return [token for token in of_words if token.entity not in ignored]
    entities = (_entity(group, joined) for group in _groups(of_words))
    return [entity for entity in entities if entity.entity_group not in ignored]


def parted(tag: str) -> tuple[str, str]:
    """Return prefix and type; a tag without a prefix counts as I, which continues an entity of its type."""
    prefix, _, name = tag.partition("-")
    return (prefix, name) if prefix in ("B", "I") and name else ("I", tag)


@dataclass(frozen=True, slots=True)
class Extent:
    """An entity by words: its type and the indices of its first and last word."""

    type: str
    first: int
    last: int


def extents(tags: Sequence[str]) -> list[Extent]:
    """Return the entities in the tags of words; malformed sequences are read as by the CoNLL-2003 scorer."""
    found: list[Extent] = []
    open_type = None
    for place, tag in enumerate(tags):
        prefix, name = parted(tag)
        if tag == OUTSIDE:
            open_type = None
        elif prefix == "I" and name == open_type:
            found[-1] = Extent(name, found[-1].first, place)
        else:
            found.append(Extent(name, place, place))
            open_type = name
    return found


def _words(tokens: Sequence[ScoredToken], strategy: Aggregation) -> Iterator[list[ScoredToken]]:
    word: list[ScoredToken] = []
    for token in tokens:
        if word and not (token.continues_word and strategy not in ("none", "simple")):
            yield word
            word = []
        word.append(token)
    if word:
        yield word


def _surest(scores_TC: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    surest_C: npt.NDArray[np.float32] = scores_TC[scores_TC.max(axis=1).argmax()]
    return surest_C


_SCORES: Mapping[Aggregation, Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]] = MappingProxyType(
    {
        "none": lambda scores_TC: scores_TC[0],
        "simple": lambda scores_TC: scores_TC[0],
        "first": lambda scores_TC: scores_TC[0],
        "average": lambda scores_TC: scores_TC.mean(axis=0),
        "max": _surest,
    }
)
"""Functions from the scores of a word's tokens to the scores of the word."""


def _of_word(word: Sequence[ScoredToken], tags: Sequence[str], strategy: Aggregation, joined: Joined) -> TaggedToken:
    score_C = _SCORES[strategy](np.stack([token.score_C for token in word]))
    best = int(score_C.argmax())
    texts = [token.text for token in word]
    text = texts[0] if strategy in ("none", "simple") else joined(texts)
    return TaggedToken(tags[best], float(score_C[best]), word[0].index, text, word[0].start, word[-1].end)


def _groups(tokens: Sequence[TaggedToken]) -> Iterator[list[TaggedToken]]:
    group: list[TaggedToken] = []
    for token in tokens:
        prefix, name = parted(token.entity)
        if group and (prefix == "B" or name != parted(group[-1].entity)[1]):
            yield group
            group = []
        group.append(token)
    if group:
        yield group


def _entity(group: Sequence[TaggedToken], joined: Joined) -> Entity:
    name = group[0].entity.split("-", 1)[-1]
    score = float(np.mean([token.score for token in group]))
    return Entity(name, score, joined([token.word for token in group]), group[0].start, group[-1].end)
