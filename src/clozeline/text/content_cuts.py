"""Cut a sequence into groups where its content says so.

A change of the sequence leaves the groups before it, and those soon after it, as they were.
"""

from collections.abc import Iterable, Iterator
from typing import TypeVar

Member = TypeVar("Member")


def groups(members: Iterable[tuple[Member, bytes, float]]) -> Iterator[list[tuple[Member, bytes]]]:
    """Yield groups of about equal size; a member comes with its digest and its share of the wanted size.

    From a quarter of the wanted size on, a group ends at each member with a chance that grows with the member; the draw
    is the digest.
    """
    waiting: list[tuple[Member, bytes]] = []
    size = 0.0
    for member, digest, share in members:
        waiting.append((member, digest))
        size += share
        if size >= 2 or (size >= 0.25 and int.from_bytes(digest[:4]) < 2 * share * 2**32):
            yield waiting
            waiting, size = [], 0.0
    if waiting:
        yield waiting
