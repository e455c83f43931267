"""What a store of files keeps, what can be removed from it, and the removal."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from clozeline.system.files import remove_folder
from clozeline.system.progress import ProgressBar


@dataclass(frozen=True, slots=True)
class Removal:
    """One step of a sweep. After each step the store is consistent, so a sweep may be killed between any two."""

    num_bytes: int
    remove: Callable[[], None]
    num_items: int = 1


@dataclass(frozen=True, slots=True)
class SweptStore:
    """A place that is swept."""

    name: str
    num_kept: int
    removals: tuple[Removal, ...] = ()
    """In the order in which they have to be done."""

    @classmethod
    def of_paths(cls, name: str, paths: Iterable[Path], is_gone: Callable[[Path], bool]) -> "SweptStore":
        """Return the store of these files and folders, of which those that `is_gone` is true for can be removed."""
        found = sorted(set(paths))
        gone = [path for path in found if is_gone(path)]
        return cls(
            name, len(found) - len(gone), tuple(Removal(_num_bytes(path), partial(_remove, path)) for path in gone)
        )

    @property
    def num_removable(self) -> int:
        return sum(removal.num_items for removal in self.removals)

    @property
    def num_bytes(self) -> int:
        """Bytes of the files that can be removed."""
        return sum(removal.num_bytes for removal in self.removals)


def sweep(stores: Iterable[SweptStore]) -> None:
    """Do every removal, store by store."""
    for store in stores:
        with ProgressBar(f"sweep {store.name}", store.num_removable) as progress:
            for removal in store.removals:
                removal.remove()
                progress.advance(removal.num_items)


def files_in(path: Path) -> list[Path]:
    """Return `path` if it is a file, or the files in the folder, in order; none if there is nothing."""
    return [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())


def _num_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in files_in(path) if not file.is_symlink())


def _remove(path: Path) -> None:
    if path.is_dir():
        remove_folder(path)
    else:
        path.unlink(missing_ok=True)
