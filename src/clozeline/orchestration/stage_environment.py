"""The environment of stage processes."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from clozeline.workspace import Workspace


def stage_environment(workspace: Workspace, extra: Mapping[str, str]) -> dict[str, str]:
    """Return our environment, with the tools' defaults for unset variables and with `python` as this interpreter."""
    return {
        **workspace.defaults(),
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYTHONUNBUFFERED": "1",  # so that lines arrive when they are written
        **extra,
    }
