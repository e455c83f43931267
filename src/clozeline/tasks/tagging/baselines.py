"""What a fine-tuned tagger has to be better than: each word's usual tag."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from clozeline.tasks.tagging.schemes import OUTSIDE
from clozeline.tasks.tagging.sentences import Sentence


def usual_tags(train: Iterable[Sentence], test: Iterable[Sentence]) -> list[list[str]]:
    """For each word of `test` the tag that it has most often in `train` (of equally many the first by name); O for a
    word that is not there.
    """
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    for sentence in train:
        for word, tag in zip(sentence.words, sentence.tags, strict=True):
            seen[word][tag] += 1
    usual = {word: min(tags, key=lambda tag: (-tags[tag], tag)) for word, tags in seen.items()}
    return [[usual.get(word, OUTSIDE) for word in sentence.words] for sentence in test]


def nothing(test: Iterable[Sentence]) -> Sequence[Sequence[str]]:
    """No entity anywhere."""
    return [[OUTSIDE] * len(sentence.words) for sentence in test]
