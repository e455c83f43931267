"""The project that a verb is called in."""

import logging
from pathlib import Path

from clozeline.errors import ParamsError
from clozeline.params import read_params
from clozeline.workspace import Workspace, set_defaults


def project_here() -> Workspace:
    """The project in the current folder, with the tools' settings in the environment.

    Called before anything of Prefect or MLflow is imported: both read their settings then.

    Raises:
        ParamsError: the current folder is no project.
    """
    workspace = Workspace(Path.cwd())
    for name in ("dvc.yaml", "params.yaml"):
        if not (workspace.root / name).is_file():
            raise ParamsError(
                "this folder is no project of Clozeline's",
                given=f"no {name} in {workspace.root}",
                expected="dvc.yaml and params.yaml",
                do="change to the folder that you cloned",
            )
    set_defaults(workspace)
    for chatty in ("alembic", "httpx", "dvc"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    return workspace


def sound_project_here() -> Workspace:
    """`project_here`, its params.yaml checked before any server or flow is started, which would tell of it as well.

    Raises:
        ParamsError: the current folder is no project, or its params cannot be used.
    """
    workspace = project_here()
    read_params(workspace.root / "params.yaml")
    return workspace
