"""Select the pairs of texts of a task and split them into training, validation and test."""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from clozeline.errors import DataError
from clozeline.params import SimilarityParams
from clozeline.records.files.identity import identity_of
from clozeline.tasks.record_count import RecordCount
from clozeline.tasks.records import Record
from clozeline.tasks.similarity.summaries import parted, without_name
from clozeline.tasks.sources import Part
from clozeline.tasks.splitting import STRICTEST_FIRST, num_of_each, part_of, remedy, strictest

_LEAST_SUMMARY_WORDS = 3
_LEAST_DESCRIPTION_WORDS = 5


@dataclass(frozen=True, slots=True)
class Pair:
    """Two texts, each with an identity that ignores case and white space."""

    first: str
    second: str
    score: float | None
    """Score, 0-1; None for a matching pair."""
    first_identity: str
    second_identity: str
    part: Part
    place: str = field(default="", compare=False)
    """Location of the record."""


@dataclass
class PairCount(RecordCount):
    """Counts of records, used and dropped."""

    without_text: int = 0
    without_score: int = 0
    too_short: int = 0
    """Docstrings with a summary of fewer than 3 words, or a description of fewer than 5."""
    repeated: int = 0
    """Docstrings whose description contains the summary verbatim, which word search would find trivially."""
    twice: int = 0
    """Copies of a pair; the pair gets their mean score."""
    beyond_max_train: int = 0
    in_several_parts: int = 0
    """Pairs with a text that a stricter split holds (test before validation before training); these are dropped."""


@dataclass(frozen=True)
class Pairs:
    train: list[Pair]
    validation: list[Pair]
    test: list[Pair]
    count: PairCount = field(default_factory=PairCount)


def select(records: Iterable[tuple[Part, Record]], params: SimilarityParams) -> Pairs:
    """Read the pairs and split them.

    The hash of both texts decides the split of a scored pair, that of the second text the split of a matching pair. The
    texts of matching pairs are in one split only, so that a search in one split has no matches in another.

    Raises:
        DataError: a score is not a number or outside the scale, a split has fewer than two pairs, or all scores of a
            split are the same.
    """
    count = PairCount()
    copies: dict[tuple[str, str], list[Pair]] = {}
    for given, record in records:
        count.num_read += 1
        pair = _pair(record, given, params, count)
        if pair is not None:
            copies.setdefault((pair.first_identity, pair.second_identity), []).append(pair)
    merged = [_merged(of_key, count) for of_key in copies.values()]
    kept = merged if params.score_field else _apart(merged, count)
    # The result does not depend on the order of the records.
    kept = sorted(kept, key=lambda pair: (pair.first_identity, pair.second_identity))
    parts: dict[Part, list[Pair]] = {part: [pair for pair in kept if pair.part == part] for part in STRICTEST_FIRST}
    parts["train"] = _chosen(parts["train"], params.max_train, count)
    count.num_used = sum(map(len, parts.values()))
    count.tell()
    _check_enough(parts, count)
    if params.score_field:
        _check_scores_differ(parts, params.score_field, params)
    return Pairs(parts["train"], parts["validation"], parts["test"], count)


def _pair(record: Record, given: Part, params: SimilarityParams, count: PairCount) -> Pair | None:
    texts = _both(record, params, count)
    if texts is None:
        return None
    score = None
    if params.score_field:
        score = _scaled(record, params.score_field, params)
        if score is None:
            count.add("without_score", record.place)
            return None
    first, second = identity_of(texts[0]), identity_of(texts[1])
    identity = identity_of(*sorted((first, second))) if params.score_field else second
    return Pair(*texts, score, first, second, part_of(identity, given, params), record.place)


def _both(record: Record, params: SimilarityParams, count: PairCount) -> tuple[str, str] | None:
    if params.docstring_field is not None:
        return _of_docstring(record, params.docstring_field, params.title_field, count)
    texts = record.text(params.first_field).strip(), record.text(params.second_field).strip()
    if not all(texts):
        count.add("without_text", record.place)
        return None
    return texts


def _of_docstring(
    record: Record, docstring_field: str, title_field: str | None, count: PairCount
) -> tuple[str, str] | None:
    whole = record.text(docstring_field)
    if not whole.strip():
        count.add("without_text", record.place)
        return None
    title = record.text(title_field) if title_field else ""
    docstring = parted(whole)
    summary, description = without_name(docstring.summary, title), without_name(docstring.description, title)
    if _is_shorter(summary, _LEAST_SUMMARY_WORDS) or _is_shorter(description, _LEAST_DESCRIPTION_WORDS):
        count.add("too_short", record.place)
        return None
    if summary.rstrip(".").casefold() in description.casefold():
        count.add("repeated", record.place)
        return None
    return summary, description


def _is_shorter(text: str, num_words: int) -> bool:
    """Return whether the text has fewer words, without counting all words of a long text."""
    return len(text.split(maxsplit=num_words - 1)) < num_words


def _scaled(record: Record, score_field: str, params: SimilarityParams) -> float | None:
    score = record.number(score_field)
    if score is None:
        return None
    if not params.lowest_score <= score <= params.highest_score:
        raise record.refuse(
            score_field, f"a number from {params.lowest_score:g} (`lowest_score`) to {params.highest_score:g}"
        )
    return (score - params.lowest_score) / (params.highest_score - params.lowest_score)


def _merged(copies: list[Pair], count: PairCount) -> Pair:
    part = strictest(copy.part for copy in copies)
    kept = [copy for copy in copies if copy.part == part]
    count.add("in_several_parts", *(copy.place for copy in copies if copy.part != part))
    count.add("twice", *(copy.place for copy in kept[1:]))
    chosen = min(kept, key=lambda copy: (copy.first, copy.second))
    scores = sorted(copy.score for copy in kept if copy.score is not None)
    score = statistics.fmean(scores) if scores else None
    return replace(chosen, score=score)


def _apart(pairs: list[Pair], count: PairCount) -> list[Pair]:
    """Return the pairs without a text in a stricter split, checked by second texts first, then by first texts."""
    for identity_name in ("second_identity", "first_identity"):
        parts: dict[str, set[Part]] = {}
        for pair in pairs:
            parts.setdefault(getattr(pair, identity_name), set()).add(pair.part)
        stays = [pair.part == strictest(parts[getattr(pair, identity_name)]) for pair in pairs]
        count.add("in_several_parts", *(pair.place for pair, stay in zip(pairs, stays, strict=True) if not stay))
        pairs = [pair for pair, stay in zip(pairs, stays, strict=True) if stay]
    return pairs


def _chosen(pairs: list[Pair], most: int | None, count: PairCount) -> list[Pair]:
    """Return the first `most` pairs. They are sorted by hash, so adding or removing other pairs changes few of them."""
    chosen = pairs[:most]
    count.beyond_max_train = len(pairs) - len(chosen)
    return chosen


def _check_enough(parts: Mapping[Part, list[Pair]], count: PairCount) -> None:
    if all(len(pairs) > 1 for pairs in parts.values()):
        return
    raise DataError(
        f"too few pairs: {count.num_read} records, {count.num_used} of use: {num_of_each(parts)}; a task needs two in"
        " each split",
        do=remedy(
            "add pairs, check the fields and fractions of this task, or remove it from `finetune`",
            parts,
            count.in_several_parts,
        ),
    )


def _check_scores_differ(parts: Mapping[Part, list[Pair]], score_field: str, params: SimilarityParams) -> None:
    """Check that each split has different scores: constant scores teach nothing and have no correlation."""
    for part, pairs in parts.items():
        scores = {pair.score for pair in pairs}
        if len(scores) > 1:
            continue
        share = scores.pop() or 0.0
        score = params.lowest_score + share * (params.highest_score - params.lowest_score)
        raise DataError(
            f"all {len(pairs)} {part} pairs have the score {score:g}, and each split needs two different ones",
            do=f"add pairs with other scores, or check `score_field` ({score_field}) and `splits` of this task",
        )
