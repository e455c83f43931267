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
from functools import partial

from clozeline.params.tasks import TaggingParams
from clozeline.records.reading.streams import identity_of
from clozeline.tasks import selection
from clozeline.tasks.selection import ReasonCounts, Splits, part_of

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
    part: selection.Part
    place: str = field(default="", compare=False)  # location of the record


@dataclass(frozen=True)
class Sentences(Splits[Sentence]):
    """Splits of a task. `tags` are O, and B- and I- of each entity type in training.

    `types_not_trained` has the number of entities of each type that occurs only in validation and test, and so cannot
    be found.
    """

    tags: tuple[str, ...]
    types_not_trained: Mapping[str, int]


def select(records: Iterable[tuple[selection.Part, selection.LabelledRecord]], params: TaggingParams) -> Sentences:
    """Read the sentences and split them. Copies within one split stay, because they tell how frequent a sentence is.

    Raises:
        DataError: words and tags of a record do not match, a split is empty, or training has no entity.
    """
    count = ReasonCounts.of_records("without_words", "in_several_parts")
    kept = selection.select(records, partial(_sentence, params), lambda it: it.identity, iter, count)
    splits = Splits.of(kept, lambda it: (it.identity, it.words, it.tags), count)
    types = {type_of(tag) for sentence in splits.train for tag in sentence.tags} - {OUTSIDE}
    if not (types and all(splits.parts.values())):
        raise splits.too_few(
            "tagged sentences",
            f"some in each split, and entities in training, which has {len(types)} types",
            "add sentences, or check the fields or columns, `validation_fraction` and `test_fraction` of this task",
        )
    judged = (*splits.validation, *splits.test)
    begun = Counter(tag[2:] for sentence in judged for tag in sentence.tags if tag.startswith("B-"))
    not_trained = {name: num for name, num in sorted(begun.items()) if name not in types}
    if not_trained:
        _LOG.warning(
            "entity types that occur only in validation or test sentences count as missed: %s",
            ", ".join(f"{name} ({num:,})" for name, num in not_trained.items()),
        )
    tags = (OUTSIDE, *(f"{prefix}-{name}" for name in sorted(types) for prefix in "BI"))
    return Sentences(splits.train, splits.validation, splits.test, count, tags, not_trained)


def _sentence(
    params: TaggingParams, found: tuple[selection.Part, selection.LabelledRecord]
) -> Sentence | tuple[str, str]:
    given, record = found
    words, tags = words_and_tags(record, params)
    if not words:
        return "without_words", record.place
    identity = identity_of(" ".join(words))
    return Sentence(words, tags, identity, part_of(identity, given, params), record.place)


def words_and_tags(record: selection.LabelledRecord, params: TaggingParams) -> tuple[tuple[str, ...], tuple[str, ...]]:
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
