"""A wheel of this package as it is installed: no index has it, and a registered model needs it to answer elsewhere."""

import os
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from hashlib import sha256
from importlib.metadata import distribution
from pathlib import Path

import clozeline

_DESCRIBED_IN = ("METADATA", "WHEEL", "entry_points.txt", "licenses/LICENSE")
# Zip archives know no earlier time. A fixed one gives the same bytes for the same files.
_EARLIEST = (1980, 1, 1, 0, 0, 0)


def write_wheel(folder: Path) -> Path:
    """Write the wheel of the running `clozeline` into `folder`, from a checkout or from an installed package.

    The format is that of https://packaging.python.org/en/latest/specifications/binary-distribution-format/.
    """
    name = f"clozeline-{distribution('clozeline').version}"
    path = folder / f"{name}-py3-none-any.whl"
    record = f"{name}.dist-info/RECORD"
    listed = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for place, content in _files(name):
            digest = urlsafe_b64encode(sha256(content).digest()).rstrip(b"=").decode()
            listed.append(f"{place},sha256={digest},{len(content)}\n")
            wheel.writestr(_entry(place), content)
        wheel.writestr(_entry(record), "".join([*listed, f"{record},,\n"]))
    return path


def _entry(place: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(place, _EARLIEST)
    entry.compress_type = zipfile.ZIP_DEFLATED
    return entry


def _files(name: str) -> Iterator[tuple[str, bytes]]:
    """Yield the path in the wheel and the content of each file of the package, then of its metadata."""
    root = Path(clozeline.__file__).parent
    # In a checkout, `clozeline/flows` is a link.
    for folder, folders, files in os.walk(root, followlinks=True):
        folders[:] = sorted(set(folders) - {"__pycache__"})
        for file in sorted(Path(folder) / file for file in files):
            yield f"clozeline/{file.relative_to(root).as_posix()}", file.read_bytes()
    for part in _DESCRIBED_IN:
        if text := distribution("clozeline").read_text(part):
            yield f"{name}.dist-info/{part}", text.encode()
