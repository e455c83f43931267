"""The project in which a verb is called."""

import logging
from pathlib import Path

from clozeline.cluster.address import reachable_cluster
from clozeline.errors import ParamsError
from clozeline.params import read_params
from clozeline.workspace import Workspace, set_defaults


def project_here() -> Workspace:
    """Return the project in the current folder, with the tools' settings in the environment.

    Call it before importing Prefect or MLflow: both read their settings at import.

    Raises:
        ParamsError: the current folder is not a project.
    """
    workspace = Workspace(Path.cwd())
    for name in ("dvc.yaml", "params.yaml"):
        if not (workspace.root / name).is_file():
            raise ParamsError(
                "this folder is not a Clozeline project",
                given=f"no {name} in {workspace.root}",
                expected="dvc.yaml and params.yaml",
                do="change to the folder of the project (`cd`), or make one: `clozeline init FOLDER`",
            )
    set_defaults(workspace)
    for chatty in ("aiobotocore", "alembic", "botocore", "httpx", "dvc"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)  # it warns of each retry of an MLflow call
    return workspace


def sound_project_here() -> Workspace:
    """Return `project_here()` with a checked params.yaml, before a server or flow starts and reports the fault as well.

    Raises:
        ParamsError: the current folder is not a project, or its params cannot be used.
    """
    workspace = project_here()
    read_params(workspace.root / "params.yaml")
    return workspace


def project_to_run() -> Workspace:
    """Return `sound_project_here()` once the cluster answers, if there is one.

    A flow would start each stage again and again, for minutes: a scheduled one waits for a cluster that comes back.

    Raises:
        ParamsError: as `sound_project_here`; or `CLOZELINE_CLUSTER` names no cluster.
        TransientError: the cluster does not answer.
    """
    workspace = sound_project_here()
    reachable_cluster()
    return workspace
