"""Baselines of tagging: each word's usual tag, and no entities."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from clozeline.tasks.tagging.schemes import OUTSIDE
from clozeline.tasks.tagging.sentences import Sentence


def usual_tags(train: Iterable[Sentence], test: Iterable[Sentence]) -> list[list[str]]:
    """Return for each word of `test` its most frequent tag in `train`; O for an unknown word.

    Ties go to the first tag by name.
    """
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    for sentence in train:
        for word, tag in zip(sentence.words, sentence.tags, strict=True):
            seen[word][tag] += 1
    usual = {word: min(tags, key=lambda tag: (-tags[tag], tag)) for word, tags in seen.items()}
    return [[usual.get(word, OUTSIDE) for word in sentence.words] for sentence in test]


def nothing(test: Iterable[Sentence]) -> Sequence[Sequence[str]]:
    """Return tags without any entity."""
    return [[OUTSIDE] * len(sentence.words) for sentence in test]
