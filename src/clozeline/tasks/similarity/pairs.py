"""Which pairs of texts a task uses, and which of them it trains on, chooses by, and is judged on."""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from clozeline.errors import DataError
from clozeline.params import SimilarityParams
from clozeline.records.identity import identity_of
from clozeline.tasks.record_count import RecordCount
from clozeline.tasks.records import Record
from clozeline.tasks.similarity.summaries import parted, without_name
from clozeline.tasks.sources import Part
from clozeline.tasks.splitting import STRICTEST_FIRST, num_of_each, part_of, remedy, strictest

_LEAST_SUMMARY_WORDS = 3
_LEAST_DESCRIPTION_WORDS = 5


@dataclass(frozen=True, slots=True)
class Pair:
    """Two texts; the identity of each is that of all texts of these words in any case."""

    first: str
    second: str
    score: float | None
    """0-1; None: they belong together."""
    first_identity: str
    second_identity: str
    part: Part
    place: str = field(default="", compare=False)
    """Where its record stands."""


@dataclass
class PairCount(RecordCount):
    """What became of the records."""

    without_text: int = 0
    without_score: int = 0
    too_short: int = 0
    """Docstrings without a description, or with a summary that says nothing."""
    repeated: int = 0
    """Docstrings whose description has the summary in it word by word: it would be found without being understood."""
    twice: int = 0
    """The same two texts again; of their scores the mean is taken."""
    beyond_max_train: int = 0
    in_several_parts: int = 0
    """A text of theirs is in a part that judges: they are not trained on, or not chosen by."""


@dataclass(frozen=True)
class Pairs:
    train: list[Pair]
    validation: list[Pair]
    test: list[Pair]
    count: PairCount = field(default_factory=PairCount)


def select(records: Iterable[tuple[Part, Record]], params: SimilarityParams) -> Pairs:
    """Read and split.

    Scored pairs go where both texts together send them. Of pairs that belong together all with one second text go where
    that text sends them, and a first text is in one part alone: what is looked for in a part is only there.

    Raises:
        DataError: a score is none or beyond the scale, there is too little to train on or to judge by, or all scores of
            a part are the same.
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
    # What comes out does not depend on the order of the records.
    kept = sorted(kept, key=lambda pair: (pair.first_identity, pair.second_identity))
    parts: dict[Part, list[Pair]] = {part: [pair for pair in kept if pair.part == part] for part in STRICTEST_FIRST}
    parts["train"] = _chosen(parts["train"], params.max_train, count)
    count.num_used = sum(map(len, parts.values()))
    count.tell()
    _check_enough(parts, count)
    if params.score_field:
        _check_told_apart(parts, params.score_field, params)
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
    """A long text is not counted to its end."""
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
    """Those whose texts are in no stricter part: first by second texts, then by first texts."""
    for identity_name in ("second_identity", "first_identity"):
        parts: dict[str, set[Part]] = {}
        for pair in pairs:
            parts.setdefault(getattr(pair, identity_name), set()).add(pair.part)
        stays = [pair.part == strictest(parts[getattr(pair, identity_name)]) for pair in pairs]
        count.add("in_several_parts", *(pair.place for pair, stay in zip(pairs, stays, strict=True) if not stay))
        pairs = [pair for pair, stay in zip(pairs, stays, strict=True) if stay]
    return pairs


def _chosen(pairs: list[Pair], most: int | None, count: PairCount) -> list[Pair]:
    """The first ones: they are in the order of their texts' hashes, which others that come or go do not change."""
    chosen = pairs[:most]
    count.beyond_max_train = len(pairs) - len(chosen)
    return chosen


def _check_enough(parts: Mapping[Part, list[Pair]], count: PairCount) -> None:
    if all(len(pairs) > 1 for pairs in parts.values()):
        return
    raise DataError(
        "there are too few pairs for this task",
        given=f"{count.num_read} records, of which {count.num_used} could be used: {num_of_each(parts)}",
        expected="two pairs or more for each part",
        do=remedy(
            "add pairs, check the fields and fractions of this task in params.yaml, or take it out of `finetune`",
            parts,
            count.in_several_parts,
        ),
    )


def _check_told_apart(parts: Mapping[Part, list[Pair]], score_field: str, params: SimilarityParams) -> None:
    """Nothing is learned from scores that are all the same, and no figure follows them."""
    for part, pairs in parts.items():
        scores = {pair.score for pair in pairs}
        if len(scores) > 1:
            continue
        share = scores.pop() or 0.0
        score = params.lowest_score + share * (params.highest_score - params.lowest_score)
        raise DataError(
            f"all scored pairs for {part} have the same score",
            given=f"{len(pairs)} pairs for {part}, each with the score {score:g}",
            expected="two different scores or more in each part",
            do=f"add pairs with other scores, or check `score_field` ({score_field}) and `splits` of this task",
        )
