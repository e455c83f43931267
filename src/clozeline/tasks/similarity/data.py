"""Pairs of texts of a task: selected, split into training, validation and test, and batched for an encoder.

A docstring is a pair of its summary line and its description (PEP 257).

The softmax of in-batch negatives runs over the whole batch, because each pair is a negative of the others. So a part
that fits into memory is not a batch of its own: it encodes the other texts without gradients, and the gradients of all
parts add up to that of the whole batch (GradCache, Gao et al. 2021, section 3).

Shapes: B pairs of a batch, P pairs of a part of it.
"""

import re
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import Self

import torch
from torch import Tensor

from clozeline.params.tasks import SimilarityParams
from clozeline.records.reading.streams import identity_of
from clozeline.system.errors import DataError
from clozeline.tasks import selection
from clozeline.tasks.rows import EncodedBatch
from clozeline.tasks.selection import ReasonCounts, Splits, part_of, strictest

_PARAGRAPH_END = re.compile(r"\n[ \t]*\n")
_SENTENCE_END = re.compile(r"[.!?]\s+(?=[A-Z`\"'(\[:*])")
# Signature such as `add(x, y, /) -> array`, with which docstrings of compiled functions begin.
_SIGNATURE = re.compile(r"[\w.*]+\([^\n]*\)(?:\s*->\s*[^\n]*)?\s*(?:\n|$)")
_HIDDEN = "this"
# Placeholder for a name during the search, a letter of the Vai script: compiling a pattern with the name itself takes
# longer than searching the text. A text that contains the letter keeps its names.
_LETTER = "\ua500"
_ANYWHERE = re.compile(rf"\b(?:[\w.]+\.)?{_LETTER}\b")
_AS_CODE = re.compile(rf"(?:\b[\w.]+\.{_LETTER}\b|\b{_LETTER}\b(?=\s?\()|(?<=`){_LETTER}(?=`))")
_LEAST_SUMMARY_WORDS = 3
_LEAST_DESCRIPTION_WORDS = 5


def parted(text: str) -> tuple[str, str]:
    """Return the summary of a docstring and its description, which may be empty, each in one line.

    The summary is the first sentence of the first paragraph; a signature before it is left out.
    """
    whole = text.strip()
    signature = _SIGNATURE.match(whole)
    if signature:
        whole = whole[signature.end() :].strip()
    first, *others = _PARAGRAPH_END.split(whole, maxsplit=1)
    end = _SENTENCE_END.search(first)
    summary, rest = (first, "") if end is None else (first[: end.start() + 1], first[end.end() :])
    return " ".join(summary.split()), " ".join(" ".join([rest, *others]).split())


def without_name(text: str, qualified_name: str) -> str:
    """Return `text` with the qualified name and its last part replaced by `this`, because a person who searches for a
    function does not know its name. A name that is a plain word is only replaced in a context of code: before a
    parenthesis, after a dot, or between backquotes.
    """
    name = qualified_name.rpartition(".")[2]
    if not name or name not in text or _LETTER in text:
        return text
    is_plain_word = name.isalpha() and name.islower()
    pattern = _AS_CODE if is_plain_word else _ANYWHERE
    words = text.replace(name, _LETTER).split(" ")
    for place, word in enumerate(words):
        if _LETTER in word:  # searching the whole text would try every word
            call = " (" if "".join(words[place + 1 : place + 2]).startswith("(") else ""
            words[place] = pattern.sub(_HIDDEN, word + call).removesuffix(call)
    return " ".join(words).replace(_LETTER, name)


@dataclass(frozen=True, slots=True)
class TextPair:
    """Two texts, each with an identity that ignores case and white space."""

    first: str
    second: str
    score: float | None  # score, 0-1; None for a matching pair
    first_identity: str
    second_identity: str
    part: selection.Part
    place: str = field(default="", compare=False)  # location of the record


def select(
    records: Iterable[tuple[selection.Part, selection.LabelledRecord]], params: SimilarityParams
) -> Splits[TextPair]:
    """Read the pairs and split them.

    The hash of both texts decides the split of a scored pair, that of the second text the split of a matching pair. The
    texts of matching pairs are in one split only, so that a search in one split has no matches in another.

    Raises:
        DataError: a score is not a number or outside the scale, a split has fewer than two pairs, or all scores of a
            split are the same.
    """
    count = ReasonCounts.of_records(
        *("without_text", "without_score"),
        "too_short",  # docstrings with a summary of fewer than 3 words, or a description of fewer than 5
        "repeated",  # descriptions that contain the summary verbatim, which word search would find trivially
        "twice",  # copies of a pair; the pair gets their mean score
        *("beyond_max_train", "in_several_parts"),
    )

    def key(pair: TextPair) -> tuple[str, str]:
        return pair.first_identity, pair.second_identity

    kept = selection.select(records, partial(_pair, params), key, partial(_merged, count), count)
    splits = Splits.of(kept if params.score_field else _apart(kept, count), key, count, params.max_train)
    if not all(len(pairs) > 1 for pairs in splits.parts.values()):
        raise splits.too_few(
            "pairs",
            "two in each split",
            "add pairs, check the fields and fractions of this task, or remove it from `finetune`",
        )
    if params.score_field:
        _check_scores_differ(splits, params)
    return splits


def _pair(
    params: SimilarityParams, found: tuple[selection.Part, selection.LabelledRecord]
) -> TextPair | tuple[str, str]:
    given, record = found
    if params.docstring_field is not None:
        texts = _of_docstring(record, params.docstring_field, params.title_field)
    else:
        texts = record.text(params.first_field).strip(), record.text(params.second_field).strip()
    if isinstance(texts, str):
        return texts, record.place
    if not all(texts):
        return "without_text", record.place
    score = None
    if params.score_field and (score := _scaled(record, params.score_field, params)) is None:
        return "without_score", record.place
    first, second = identity_of(texts[0]), identity_of(texts[1])
    identity = identity_of(*sorted((first, second))) if params.score_field else second
    return TextPair(*texts, score, first, second, part_of(identity, given, params), record.place)


def _of_docstring(
    record: selection.LabelledRecord, docstring_field: str, title_field: str | None
) -> tuple[str, str] | str:
    """Return summary and description; or the reason why they are no pair."""
    whole = record.text(docstring_field)
    if not whole.strip():
        return "without_text"
    title = record.text(title_field) if title_field else ""
    summary, description = (without_name(part, title) for part in parted(whole))
    if _is_shorter(summary, _LEAST_SUMMARY_WORDS) or _is_shorter(description, _LEAST_DESCRIPTION_WORDS):
        return "too_short"
    return "repeated" if summary.rstrip(".").casefold() in description.casefold() else (summary, description)


def _is_shorter(text: str, num_words: int) -> bool:
    """Return whether the text has fewer words, without counting all words of a long text."""
    return len(text.split(maxsplit=num_words - 1)) < num_words


def _scaled(record: selection.LabelledRecord, score_field: str, params: SimilarityParams) -> float | None:
    score = record.number(score_field)
    if score is None:
        return None
    if not params.lowest_score <= score <= params.highest_score:
        raise record.refuse(
            score_field, f"a number from {params.lowest_score:g} (`lowest_score`) to {params.highest_score:g}"
        )
    return (score - params.lowest_score) / (params.highest_score - params.lowest_score)


def _merged(count: ReasonCounts, copies: list[TextPair]) -> Iterator[TextPair]:
    count.add("twice", *(copy.place for copy in copies[1:]))
    scores = sorted(copy.score for copy in copies if copy.score is not None)
    chosen = min(copies, key=lambda copy: (copy.first, copy.second))
    yield replace(chosen, score=statistics.fmean(scores) if scores else None)


def _apart(pairs: list[TextPair], count: ReasonCounts) -> list[TextPair]:
    """Return the pairs without a text in a stricter split, checked by second texts first, then by first texts."""
    for identity_of_pair in (attrgetter("second_identity"), attrgetter("first_identity")):
        parts: dict[str, set[selection.Part]] = {}
        for pair in pairs:
            parts.setdefault(identity_of_pair(pair), set()).add(pair.part)
        stays = [pair.part == strictest(parts[identity_of_pair(pair)]) for pair in pairs]
        count.add("in_several_parts", *(pair.place for pair, stay in zip(pairs, stays, strict=True) if not stay))
        pairs = [pair for pair, stay in zip(pairs, stays, strict=True) if stay]
    return pairs


def _check_scores_differ(splits: Splits[TextPair], params: SimilarityParams) -> None:
    """Check that each split has different scores: constant scores teach nothing and have no correlation."""
    for part, pairs in splits.parts.items():
        scores = {pair.score for pair in pairs}
        if len(scores) == 1:
            score = params.lowest_score + (scores.pop() or 0.0) * (params.highest_score - params.lowest_score)
            raise DataError(
                f"all {len(pairs)} {part} pairs have the score {score:g}, and each split needs two scores",
                do="add pairs with other scores, or check `score_field` and `splits` of this task",
            )


@dataclass(frozen=True)
class Targets:
    """Targets of the pairs of a batch: scores, 0-1, and None for matching pairs; and the numbers of their texts, the
    same for equal texts. Pairs that share a text are not negatives of each other.
    """

    score_B: Tensor | None
    first_B: Tensor
    second_B: Tensor

    def each(self, change: Callable[[Tensor], Tensor]) -> Self:
        score_B = None if self.score_B is None else change(self.score_B)
        return type(self)(score_B, change(self.first_B), change(self.second_B))


@dataclass(frozen=True)
class PairBatch:
    """Pairs `first` … `last - 1` of a batch, with the whole batch."""

    firsts: EncodedBatch
    seconds: EncodedBatch
    targets: Targets
    first: int
    last: int
    counts: bool = True  # whether the targets count, as in `EncodedBatch`

    @classmethod
    def whole(cls, firsts: EncodedBatch, seconds: EncodedBatch, targets: Targets) -> Self:
        return cls(firsts, seconds, targets, 0, firsts.num_rows)

    @property
    def num_rows(self) -> int:
        return self.last - self.first

    @property
    def num_slots(self) -> int:
        """Number of tokens, including padding, of its own pairs, for which gradients are kept."""
        return self.num_rows * (self.firsts.num_slots + self.seconds.num_slots) // self.firsts.num_rows

    @property
    def is_whole(self) -> bool:
        return self.num_rows == self.firsts.num_rows

    def rows(self, first: int, last: int) -> Self:
        return replace(self, first=self.first + first, last=self.first + last)

    def silent(self) -> Self:
        return replace(self, counts=False)

    def to(self, device: torch.device) -> Self:
        firsts, seconds = self.firsts.to(device), self.seconds.to(device)
        targets = self.targets.each(lambda tensor: tensor.to(device))
        return replace(self, firsts=firsts, seconds=seconds, targets=targets)

    def others(self) -> Iterator[Self]:
        """Yield all pairs before and after this part, in parts of at most its size."""
        starts = [*range(0, self.first, self.num_rows), *range(self.last, self.firsts.num_rows, self.num_rows)]
        ends = [self.first if start < self.first else self.firsts.num_rows for start in starts]
        for start, end in zip(starts, ends, strict=True):
            yield replace(self, first=start, last=min(start + self.num_rows, end))
