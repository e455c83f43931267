"""Files that two folders share."""

import os
import shutil
from pathlib import Path


def link_or_copy(source: Path, target: Path) -> None:
    """Make `target` a hard link to the unchanging file `source`, or a copy where the file system has no such links."""
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)
