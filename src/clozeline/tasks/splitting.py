"""Assign the items of a task to disjoint splits.

The hash of an item decides. So an item stays in its split when others are added or removed, and copies share a split.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from clozeline.artifacts.preprocess.clean_text import DOC_ID, columns_of
from clozeline.params import FinetuneParams
from clozeline.tasks.sources import Part, given_parts

STRICTEST_FIRST: tuple[Part, ...] = ("test", "validation", "train")
"""Order of precedence for an item given in several splits; no item for evaluation is trained on."""


def part_of(identity: str, given: Part, params: FinetuneParams) -> Part:
    """Return the split of an item given in `given`. Missing splits are taken out of `train`."""
    parts = given_parts(params)
    if given != "train":
        return given
    place = _draw(identity)
    test_fraction = 0.0 if "test" in parts else params.test_fraction
    if place < test_fraction:
        return "test"
    if "validation" not in parts and place < test_fraction + params.validation_fraction:
        return "validation"
    return "train"


def count_seen(identities: Iterable[str], pretraining_text: Path) -> int:
    """Return how many distinct identities are in the column `doc_id` of a clean text."""
    wanted = set(identities)
    seen: set[str] = set()
    for (doc_ids,) in columns_of(pretraining_text, DOC_ID):
        seen.update(wanted.intersection(doc_ids.to_pylist()))
    return len(seen)


def strictest(parts: Iterable[Part]) -> Part:
    """Return the split that an item stays in, if its copies were given in `parts`."""
    return min(parts, key=STRICTEST_FIRST.index)


def num_of_each(parts: Mapping[Part, Iterable[object]]) -> str:
    """Return the sizes for a message: `3 for train, 0 for validation, 1 for test`."""
    return ", ".join(f"{len(list(items))} for {part}" for part, items in parts.items())


def remedy(usual: str, parts: Mapping[Part, Collection[object]], num_in_several: int) -> str:
    """Return the advice for a split that is too small: `usual`, with a hint if stricter splits took its items."""
    if not num_in_several or all(parts[part] for part in ("train", "validation")):
        return usual
    return (
        f"{num_in_several:,} of the records also occur in the test or validation split, which keeps them: check whether"
        f" `splits` names one file twice; or {usual}"
    )


def _draw(identity: str) -> float:
    """Return a uniform number in [0, 1) from the identity, without a seed: all seeds use the same test items."""
    digest = hashlib.blake2b(identity.encode(), digest_size=8, person=b"part").digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53
