"""Items of imports that quote a text which is forgotten."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from clozeline.artifacts.finetune.model.held_out import read_items
from clozeline.artifacts.lock import Lock
from clozeline.importing.items_file import items_files, without, write_items
from clozeline.orchestration.sought import Sought
from clozeline.storage.sweep import Removal, Store


def hashes_of_quoting(root: Path, sought: Sought, lock: Lock) -> Iterator[str]:
    """Yield the hashes under which `lock` names files of items that quote the text."""
    quoting = {str(file.relative_to(root)) for file in items_files(root) if sought.is_quoted_in(file)}
    for stage in lock.stages.values():
        yield from (dep.md5 for dep in stage.deps if dep.md5 and dep.path in quoting)


def items_store(root: Path, sought: Sought) -> Store:
    """Return the items of all imports, of which those that quote the text can be removed.

    Raises:
        ArtifactError: a line of a file is not an item.
    """
    num_kept, removals = 0, list[Removal]()
    for file in items_files(root):
        items = read_items(file)
        kept = without(items, sought.is_quoted_by)
        num_kept += len(kept)
        if gone := [item for item in items if item not in kept]:
            num_bytes = sum(len(item.model_dump_json(exclude_defaults=True)) for item in gone)
            removals.append(Removal(num_bytes, partial(write_items, file, kept), len(gone)))
    return Store("imports: items", num_kept, tuple(removals))
