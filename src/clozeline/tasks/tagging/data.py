"""Tagged sentences of a task: converted to IOB2, selected, and split into training, validation and test.

IOB1 (Ramshaw & Marcus 1995) uses B- only if an entity follows another of its type. In IOB2, the only scheme used here,
every entity begins with B-. IOBES, also called BILOU, marks the last word with E- (or L-), and an entity of one word
with S- (or U-). One rule, that of the CoNLL-2003 scorer, reads all three: an entity begins at B-, S- and U-, at a new
type, and after the end of an entity.
"""

import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from clozeline.params.tasks import TaggingParams
from clozeline.records.reading.streams import identity_of
from clozeline.system.errors import DataError
from clozeline.tasks.files import LabelledRecord, Part
from clozeline.tasks.selection import RecordCount, num_of_each, part_of, remedy, strictest

OUTSIDE = "O"
_TAG = re.compile(r"([BIESLU])-(.+)")
_BEGINS = frozenset("BSU")
_ENDS = frozenset("ESLU")
_LOG = logging.getLogger(__name__)


def is_tag(text: str) -> bool:
    return text == OUTSIDE or _TAG.fullmatch(text) is not None


def to_iob2(tags: Sequence[str]) -> list[str]:
    """Return the tags of the same entities in IOB2.

    Raises:
        ValueError: a string is not a tag; the string is the error's argument.
    """
    written = []
    open_type = None
    for tag in tags:
        if tag == OUTSIDE:
            written.append(tag)
            open_type = None
            continue
        match = _TAG.fullmatch(tag)
        if match is None:
            raise ValueError(tag)
        prefix, entity_type = match.groups()
        begins = prefix in _BEGINS or entity_type != open_type
        written.append(f"{'B' if begins else 'I'}-{entity_type}")
        open_type = None if prefix in _ENDS else entity_type
    return written


def type_of(tag: str) -> str:
    """Return the entity type of a tag; O outside entities."""
    return tag.partition("-")[2] or OUTSIDE


@dataclass(frozen=True, slots=True)
class Sentence:
    """Words with their tags in IOB2, and an identity that ignores case."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    identity: str
    part: Part
    place: str = field(default="", compare=False)
    """Location of the record."""


@dataclass
class SentenceCount(RecordCount):
    """Counts of records, used and dropped."""

    without_words: int = 0
    in_several_parts: int = 0
    """Copies of a sentence that a stricter split holds (test before validation before training); these are dropped.
    Copies within one split stay, because they reflect how frequent a sentence is.
    """


@dataclass(frozen=True)
class Sentences:
    """Splits of a task. `tags` are O, and B- and I- of each entity type in training."""

    tags: tuple[str, ...]
    train: list[Sentence]
    validation: list[Sentence]
    test: list[Sentence]
    types_not_trained: Mapping[str, int]
    """Entity type that occurs only in validation and test → number of its entities, which cannot be found."""
    count: SentenceCount = field(default_factory=SentenceCount)


def select(records: Iterable[tuple[Part, LabelledRecord]], params: TaggingParams) -> Sentences:
    """Read the sentences and split them.

    Raises:
        DataError: words and tags of a record do not match, a split is empty, or training has no entity.
    """
    count = SentenceCount()
    copies: dict[str, list[Sentence]] = {}
    for given, record in records:
        count.num_read += 1
        words, tags = words_and_tags(record, params)
        if words:
            identity = identity_of(" ".join(words))
            sentence = Sentence(words, tags, identity, part_of(identity, given, params), record.place)
            copies.setdefault(identity, []).append(sentence)
        else:
            count.add("without_words", record.place)
    parts: dict[Part, list[Sentence]] = {"train": [], "validation": [], "test": []}
    for of_identity in copies.values():
        part = strictest(copy.part for copy in of_identity)
        count.add("in_several_parts", *(copy.place for copy in of_identity if copy.part != part))
        parts[part].extend(copy for copy in of_identity if copy.part == part)
    for content in parts.values():  # The result does not depend on the order of the records.
        content.sort(key=lambda copy: (copy.identity, copy.words, copy.tags))
    count.num_used = sum(map(len, parts.values()))
    types = {type_of(tag) for sentence in parts["train"] for tag in sentence.tags} - {OUTSIDE}
    count.tell()
    _check_enough(parts, types, count)
    not_trained = _not_trained((*parts["validation"], *parts["test"]), types)
    _name(not_trained)
    return Sentences(
        tags=(OUTSIDE, *(f"{prefix}-{name}" for name in sorted(types) for prefix in "BI")),
        train=parts["train"],
        validation=parts["validation"],
        test=parts["test"],
        types_not_trained=not_trained,
        count=count,
    )


def words_and_tags(record: LabelledRecord, params: TaggingParams) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the words of a record, and their tags in IOB2.

    Raises:
        DataError: they are not as many, or a tag is none.
    """
    words, tags = record.strings(params.tokens_field), record.strings(params.tags_field)
    if len(words) != len(tags):
        raise record.refuse(params.tags_field, f"{len(words)} tags, one for each word, not {len(tags)}")
    try:
        return tuple(words), tuple(to_iob2(tags))
    except ValueError as error:
        raise record.refuse(params.tags_field, f"O, or a type after B-, I-, E-, S-, L- or U-, not {error}") from error


def _not_trained(sentences: Iterable[Sentence], types: set[str]) -> dict[str, int]:
    begun = (tag[2:] for sentence in sentences for tag in sentence.tags if tag.startswith("B-"))
    return dict(sorted(Counter(name for name in begun if name not in types).items()))


def _name(not_trained: Mapping[str, int]) -> None:
    if not_trained:
        _LOG.warning(
            "entity types that occur only in validation or test sentences count as missed: %s",
            ", ".join(f"{name} ({num:,})" for name, num in not_trained.items()),
        )


def _check_enough(parts: Mapping[Part, list[Sentence]], types: set[str], count: SentenceCount) -> None:
    if types and all(parts.values()):
        return
    raise DataError(
        f"too few tagged sentences: {count.num_read} records, {count.num_used} of use: {num_of_each(parts)}; a task"
        f" needs some in each split, and entities in training, which has {len(types)} types",
        do=remedy(
            "add sentences, or check the fields or columns, `validation_fraction` and `test_fraction` of this task",
            parts,
            count.in_several_parts,
        ),
    )
