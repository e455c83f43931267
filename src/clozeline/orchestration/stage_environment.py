"""The environment of stage processes."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from clozeline.workspace import Workspace


def stage_environment(workspace: Workspace, extra: Mapping[str, str]) -> dict[str, str]:
    """Return our environment, with the tools' defaults for unset variables and with `python` as this interpreter.

    The password of Prefect's server stays here: no stage asks it anything, and some run on other machines.
    """
    ours = {name: value for name, value in os.environ.items() if name != "PREFECT_API_AUTH_STRING"}
    return {
        **workspace.defaults(),
        **ours,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYTHONUNBUFFERED": "1",  # so that lines arrive when they are written
        **extra,
    }
