"""What a store of files keeps, what can be removed from it, and the removal."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from clozeline.progress import ProgressBar


@dataclass(frozen=True, slots=True)
class Removal:
    """One step of a sweep. After each step the store is consistent, so a sweep may be killed between any two."""

    num_bytes: int
    remove: Callable[[], None]
    num_items: int = 1


@dataclass(frozen=True, slots=True)
class Store:
    """A place that is swept."""

    name: str
    num_kept: int
    removals: tuple[Removal, ...] = ()
    """In the order in which they have to be done."""

    @property
    def num_removable(self) -> int:
        return sum(removal.num_items for removal in self.removals)

    @property
    def num_bytes(self) -> int:
        """Bytes of the files that can be removed."""
        return sum(removal.num_bytes for removal in self.removals)


def sweep(stores: Iterable[Store]) -> None:
    """Do every removal, store by store."""
    for store in stores:
        with ProgressBar(f"sweep {store.name}", store.num_removable) as progress:
            for removal in store.removals:
                removal.remove()
                progress.advance(removal.num_items)
