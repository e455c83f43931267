"""Exact match and F1 as SQuAD's official script computes them (Rajpurkar et al. 2018)."""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b", re.UNICODE)
_PUNCTUATION = frozenset(string.punctuation)


def normalized(text: str) -> str:
    """Return the text in lower case with single spaces, without punctuation and articles."""
    kept = "".join(character for character in text.lower() if character not in _PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", kept).split())


def exact_match(answers: Sequence[str], predicted: str) -> float:
    """Return 1 if `predicted` is one of `answers`, or if both are empty; else 0."""
    return _best(lambda answer: float(normalized(answer) == normalized(predicted)), answers)


def f1(answers: Sequence[str], predicted: str) -> float:
    """Return the F1 of words between `predicted` and the nearest of `answers`."""
    return _best(lambda answer: _word_f1(normalized(answer).split(), normalized(predicted).split()), answers)


def _best(figure: Callable[[str], float], answers: Sequence[str]) -> float:
    """Return the best figure over the answers. As in the script, answers that normalize to nothing, such as `the`,
    count only if there are no others.
    """
    spoken = [answer for answer in answers if normalized(answer)]
    return max(figure(answer) for answer in spoken or [""])


def _word_f1(answer: Sequence[str], predicted: Sequence[str]) -> float:
    if not answer or not predicted:
        return float(answer == predicted)
    common = sum((Counter(answer) & Counter(predicted)).values())
    return 2 * common / (len(answer) + len(predicted))
