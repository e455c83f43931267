"""Which part of a task an item belongs to: by its own hash, and never to two.

An item goes where its own hash sends it: it stays there when others come or go, and all copies of it go together.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import pyarrow.parquet as pq

from clozeline.params import FinetuneParams
from clozeline.tasks.sources import Part, given_parts

STRICTEST_FIRST: tuple[Part, ...] = ("test", "validation", "train")
"""An item that was given for several parts stays in the first of these: what is judged by is not trained on."""


def part_of(identity: str, given: Part, params: FinetuneParams) -> Part:
    """Where an item belongs that was given for `given`: parts that were not given are taken out of `train`."""
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
    """How many are of documents in a clean text, whose column `doc_id` holds their identities."""
    wanted = set(identities)
    seen: set[str] = set()
    with pq.ParquetFile(pretraining_text) as file:
        for batch in file.iter_batches(columns=["doc_id"]):
            seen.update(wanted.intersection(batch.column(0).to_pylist()))
    return len(seen)


def strictest(parts: Iterable[Part]) -> Part:
    """Of the parts that copies of one item were given for, the one that it stays in."""
    return min(parts, key=STRICTEST_FIRST.index)


def num_of_each(parts: Mapping[Part, Iterable[object]]) -> str:
    """For messages: `3 for train, 0 for validation, 1 for test`."""
    return ", ".join(f"{len(list(items))} for {part}" for part, items in parts.items())


def remedy(usual: str, parts: Mapping[Part, Collection[object]], num_in_several: int) -> str:
    """What to do where a part is too small: `usual`, but where items for it were given for a stricter part too."""
    if not num_in_several or all(parts[part] for part in ("train", "validation")):
        return usual
    return (
        f"{num_in_several:,} of the records stand in the test or validation part too, and are used there alone: check"
        f" whether `splits` names one file twice; or {usual}"
    )


def _draw(identity: str) -> float:
    """Uniform in [0, 1), independent of the order of identities. No seed: two seeds are judged on the same items."""
    digest = hashlib.blake2b(identity.encode(), digest_size=8, person=b"part").digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53
