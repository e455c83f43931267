"""Makes the Prefect server agree with infra/prefect.yaml: `python -m flows.deploy` (or `make deploy`).

`prefect deploy` alone adds and changes but never takes away: a deployment keeps its last schedule when the file
has none left, and stays when the file no longer names it. This does both, so that running it twice, or after any
edit, leaves exactly what the file says. A deployment belongs to the file when it carries `OWNED_TAG`.
"""

import logging
import subprocess
import sys
from pathlib import Path
from typing import Annotated

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentUpdate, WorkPoolCreate
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags
from prefect.exceptions import ObjectNotFound
from prefect.settings import get_current_settings
from prefect.workers.process import ProcessWorker
from pydantic import AfterValidator, BaseModel
from ruamel.yaml import YAML

from clozeline.errors import ClozelineError, ParamsError, TransientError

OWNED_TAG = "clozeline"
PREFECT_FILE = Path("infra/prefect.yaml")

logger = logging.getLogger(__name__)


def _is_owned(tags: list[str]) -> list[str]:
    if OWNED_TAG not in tags:
        raise ValueError(
            f"a deployment of this file carries the tag `{OWNED_TAG}`: without it, it cannot be taken back"
        )
    return tags


class WorkPool(BaseModel):
    name: str


class Deployment(BaseModel):
    """What is needed of one entry of the file; `prefect deploy` reads and checks the rest."""

    name: str
    work_pool: WorkPool
    tags: Annotated[list[str], AfterValidator(_is_owned)]
    schedules: list[dict[str, object]] = []


class PrefectFile(BaseModel):
    deployments: list[Deployment]


def deploy(prefect_file: Path) -> None:
    """Create the work pools, deploy everything the file names, and remove what left it.

    Raises:
        ParamsError: no server is named.
        TransientError: the server does not answer.
        pydantic.ValidationError: the file names a deployment that it could not take back.
        subprocess.CalledProcessError: `prefect deploy` refused; its own output says why.
    """
    wanted = PrefectFile.model_validate(YAML(typ="safe").load(prefect_file)).deployments
    _require_server_name()
    with get_client(sync_client=True) as client:
        _require_answer(client)
        for pool_name in sorted({deployment.work_pool.name for deployment in wanted}):
            _create_work_pool(client, pool_name)
        subprocess.run(
            [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", str(prefect_file)],
            check=True,
        )
        _remove_what_left(client, {deployment.name: deployment for deployment in wanted})


def _require_server_name() -> None:
    """Without one, Prefect would deploy to a server of its own that ends with this process."""
    if get_current_settings().api.url is None:
        raise ParamsError(
            "there is no Prefect server to deploy to",
            given="PREFECT_API_URL is not set",
            expected="the address of a running server, such as http://127.0.0.1:4200/api",
            do="start one with `prefect server start`, then set PREFECT_API_URL",
        )


def _require_answer(client: SyncPrefectClient) -> None:
    if (failure := client.api_healthcheck()) is not None:
        raise TransientError(
            "the Prefect server does not answer",
            given=f"PREFECT_API_URL={client.api_url}: {failure}",
            expected="a server that answers there",
            do="start it (`prefect server start`) or correct PREFECT_API_URL",
        )


def _create_work_pool(client: SyncPrefectClient, name: str) -> None:
    """A pool that is there stays as it is: its limit and whether it is paused are the operator's."""
    try:
        client.read_work_pool(name)
    except ObjectNotFound:
        template = ProcessWorker.get_default_base_job_template()
        client.create_work_pool(WorkPoolCreate(name=name, type=ProcessWorker.type, base_job_template=template))
        logger.info("created work pool %s", name)


def _remove_what_left(client: SyncPrefectClient, wanted: dict[str, Deployment]) -> None:
    owned = DeploymentFilter(tags=DeploymentFilterTags(all_=[OWNED_TAG]))
    for deployment in client.read_deployments(deployment_filter=owned):
        if deployment.name not in wanted:
            client.delete_deployment(deployment.id)
            logger.info("deleted deployment %s: it is no longer in the file", deployment.name)
        elif deployment.schedules and not wanted[deployment.name].schedules:
            client.update_deployment(deployment.id, DeploymentUpdate(schedules=[]))
            logger.info("removed the schedules of %s: the file has none", deployment.name)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        deploy(PREFECT_FILE)
    except ClozelineError as error:
        logger.error("error: %s", error)
        sys.exit(error.exit_code)
