"""Deployments on a Prefect server, and their definitions in a file."""

import logging
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Self
from uuid import UUID, uuid4

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentUpdate, WorkPoolCreate
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags
from prefect.exceptions import ObjectNotFound
from prefect.workers.process import ProcessWorker
from pydantic import AfterValidator, BaseModel, model_validator
from ruamel.yaml import YAML

from clozeline.orchestration.alert_receivers import Receiver
from clozeline.orchestration.automations import Automation

OWNED_TAG = "clozeline"

logger = logging.getLogger(__name__)


def _is_owned(tags: list[str]) -> list[str]:
    if OWNED_TAG not in tags:
        raise ValueError(
            f"the tag `{OWNED_TAG}` on every deployment: without it, removing the deployment here deletes nothing"
        )
    return tags


class WorkPool(BaseModel):
    name: str


class Deployment(BaseModel):
    """The needed fields of one entry of the file; `prefect deploy` reads and checks the rest."""

    name: str
    work_pool: WorkPool
    tags: Annotated[list[str], AfterValidator(_is_owned)]
    schedules: list[dict[str, object]] = []


class WorkQueue(BaseModel):
    """A queue of a work pool, with the number of runs that may be active at once."""

    name: str
    work_pool: str
    concurrency_limit: int


class PrefectFile(BaseModel):
    deployments: list[Deployment]
    work_queues: list[WorkQueue] = []
    receivers: list[Receiver] = []
    automations: list[Automation] = []

    @model_validator(mode="after")
    def _automations_can_be_made(self) -> Self:
        ids = {
            "deployment": {deployment.name: uuid4() for deployment in self.deployments},
            "receiver": {receiver.name: uuid4() for receiver in self.receivers},
        }
        for automation in self.automations:
            automation.resolved(ids)
        return self

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read and validate the file; raises pydantic's `ValidationError`."""
        return cls.model_validate(YAML(typ="safe").load(file))


def make_work_pools(client: SyncPrefectClient, wanted: Sequence[Deployment]) -> None:
    """Create the missing work pools. An existing one is not changed: its limit and pause belong to the operator."""
    for name in sorted({deployment.work_pool.name for deployment in wanted}):
        try:
            client.read_work_pool(name)
        except ObjectNotFound:
            template = ProcessWorker.get_default_base_job_template()
            client.create_work_pool(WorkPoolCreate(name=name, type=ProcessWorker.type, base_job_template=template))
            logger.info("created work pool %s", name)


def limit_work_queues(client: SyncPrefectClient, wanted: Sequence[WorkQueue]) -> None:
    """Create the missing queues, and give each its limit."""
    for queue in wanted:
        try:
            known = client.read_work_queue_by_name(queue.name, work_pool_name=queue.work_pool)
            client.update_work_queue(known.id, concurrency_limit=queue.concurrency_limit)
        except ObjectNotFound:
            client.create_work_queue(
                queue.name, work_pool_name=queue.work_pool, concurrency_limit=queue.concurrency_limit
            )
            logger.info("created work queue %s of %s", queue.name, queue.work_pool)


def deploy_all(prefect_file: Path) -> None:
    """Create or update every deployment of the file; raises `CalledProcessError` if `prefect deploy` refuses."""
    arguments = ["--no-prompt", "deploy", "--all", "--prefect-file", str(prefect_file)]
    subprocess.run([sys.executable, "-m", "prefect", *arguments], check=True)


def remove_others(client: SyncPrefectClient, wanted: Sequence[Deployment]) -> None:
    """Delete our deployments that are not `wanted`, and the schedules of wanted ones that no longer have any."""
    by_name = {deployment.name: deployment for deployment in wanted}
    owned = DeploymentFilter(tags=DeploymentFilterTags(all_=[OWNED_TAG]))
    for deployment in client.read_deployments(deployment_filter=owned):
        if deployment.name not in by_name:
            client.delete_deployment(deployment.id)
            logger.info("deleted deployment %s: it is no longer in the file", deployment.name)
        elif deployment.schedules and not by_name[deployment.name].schedules:
            client.update_deployment(deployment.id, DeploymentUpdate(schedules=[]))
            logger.info("removed the schedules of %s: the file has none", deployment.name)


def ids_of(client: SyncPrefectClient, wanted: Sequence[Deployment]) -> dict[str, UUID]:
    """Return name → id of the deployments that `wanted` names."""
    names = {deployment.name for deployment in wanted}
    owned = DeploymentFilter(tags=DeploymentFilterTags(all_=[OWNED_TAG]))
    found = client.read_deployments(deployment_filter=owned)
    return {deployment.name: deployment.id for deployment in found if deployment.name in names}
