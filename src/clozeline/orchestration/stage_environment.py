"""The environment that stage processes get."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from clozeline.workspace import Workspace


def stage_environment(workspace: Workspace, extra: Mapping[str, str]) -> dict[str, str]:
    """Ours, with the tools' defaults where it says nothing, and with `python` meaning this interpreter."""
    return {
        **workspace.defaults(),
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYTHONUNBUFFERED": "1",  # lines arrive when they are written
        **extra,
    }
