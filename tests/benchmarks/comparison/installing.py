"""Packages for the other sides, beside the project: in the lock, they would change the built-in corpus, which is made
of what is installed, and some exclude what it names.
"""

import hashlib
import logging
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from comparison.stages import KEPT, PROJECT

_LOG = logging.getLogger(__name__)
_CLIENTS = PROJECT / "tests" / "clients" / "requirements.lock"


def installed(requirements: Sequence[str]) -> Path:
    """The folder where these lie, without what they need beside them; installed on first use.

    Raises:
        CalledProcessError: they cannot be had.
    """
    digest = hashlib.sha256(" ".join(requirements).encode()).hexdigest()[:12]
    folder = KEPT / "installed" / digest
    if not folder.is_dir():
        _LOG.info("installing %s", " and ".join(requirements))
        beside = folder.with_suffix(".part")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(beside)]
        subprocess.run([*command, *requirements], check=True, stdout=sys.stderr)
        beside.rename(folder)
    return folder


def pinned_for_clients(names: Sequence[str]) -> list[str]:
    """`NAME==VERSION` of each, as the tests of clients have it, whose environment excludes ours too.

    Raises:
        KeyError: the tests of clients have no such package.
    """
    lines = _CLIENTS.read_text(encoding="utf-8").splitlines()
    pins = {line.partition("==")[0]: line for line in lines}
    return [pins[name] for name in names]
