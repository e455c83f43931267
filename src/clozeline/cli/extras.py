"""Packages that the base install omits, and the extras that bring them."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import requires

from clozeline.errors import ClozelineError

_CALLED_OTHERWISE = {"sklearn": "scikit-learn"}
"""Import name → distribution, where they differ by more than `_` for `-`."""


@contextmanager
def telling_of_extras() -> Iterator[None]:
    """Say which extra to install if a verb needs a missing package.

    Raises:
        ClozelineError: a package of one of our extras cannot be imported.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        extra = _extra_with(package)
        if extra is None:
            raise
        raise ClozelineError(
            "this command needs a package that the base install leaves out",
            given=f"no package {package}",
            expected=f"the extra `{extra}`, which includes it",
            do=f"run `pip install 'clozeline[{extra}]'`",
        ) from error


def _extra_with(package: str) -> str | None:
    """Return the extra of this distribution that requires the package with this import name."""
    wanted = _CALLED_OTHERWISE.get(package, package.replace("_", "-"))
    asked = (
        re.match(r"""([\w.-]+).*\bextra == ["'](train|flows|ray|sweep)["']""", line)
        for line in requires("clozeline") or ()
    )
    return next((found[2] for found in asked if found and found[1].lower() == wanted), None)
