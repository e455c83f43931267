"""Opened packages, by the class that answers."""

from pathlib import Path
from typing import Any, TypeVar

from clozeline.inference.open_model import OpenModel
from clozeline.inference.package import load

Kind = TypeVar("Kind", bound=OpenModel)


def load_as(kind: type[Kind], package: Path, *, max_length: int | None = None, **how: Any) -> Kind:
    """Open a package whose models are of this class; with `max_length`, as one that reads so many tokens."""
    if max_length is not None:
        manifest = package / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"max_length":64', f'"max_length":{max_length}'))
    opened = load(package, **how)
    assert isinstance(opened, kind)
    return opened
