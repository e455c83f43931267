"""Packages for the other sides, installed outside the project's lock.

No user needs them, and some of them conflict with packages that the lock pins.
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
    """Return the folder of the packages, without their dependencies; install them on first use.

    Raises:
        CalledProcessError: pip cannot install them.
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
    """Return `NAME==VERSION` of each package as pinned for the client tests, whose environment conflicts with ours too.

    Raises:
        KeyError: the client tests pin no such package.
    """
    lines = _CLIENTS.read_text(encoding="utf-8").splitlines()
    pins = {line.partition("==")[0]: line for line in lines}
    return [pins[name] for name in names]
