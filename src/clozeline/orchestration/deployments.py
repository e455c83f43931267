"""Deployments, automations and receivers of alerts on a Prefect server, and their definitions in a file.

Automations in the file use names where the server uses ids. Receivers are blocks of the server, which keep their
addresses as secrets.
"""

import logging
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Self
from uuid import UUID, uuid4

from prefect.blocks.abstract import NotificationBlock
from prefect.blocks.notifications import CustomWebhookNotificationBlock, SlackWebhook
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentUpdate, WorkPoolCreate
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags
from prefect.exceptions import ObjectNotFound
from prefect.workers.process import ProcessWorker
from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator
from ruamel.yaml import YAML

from clozeline.orchestration.prefect_adapter import AutomationCore, SecretDict, apprise_block
from clozeline.system.errors import ParamsError

OWNED_PREFIX: Final = "clozeline-"
"""Name prefix of the automations that belong to the file."""

logger = logging.getLogger(__name__)
Ids = Mapping[str, Mapping[str, UUID | None]]
"""Kind of reference, then name → id; None: the server has none, so that the action is left out."""
_FIELDS: Final = {"deployment": "deployment_id", "receiver": "block_document_id"}
OWNED_TAG = "clozeline"


class Automation(BaseModel):
    """An automation of the file; Prefect checks the fields that are not listed here."""

    model_config = ConfigDict(extra="allow")

    name: str
    actions: list[dict[str, Any]]
    """An action may have `deployment` or `receiver`, a name, in place of Prefect's id."""

    def resolved(self, ids: Ids) -> AutomationCore | None:
        """Return it in Prefect's form; None if no action is left.

        Raises:
            ValueError: it names something that is not in `ids`, or is not an automation (pydantic's `ValidationError`).
        """
        actions = [done for action in self.actions if (done := _resolved(action, ids))]
        return AutomationCore.model_validate(self.model_dump() | {"actions": actions}) if actions else None


def _resolved(action: Mapping[str, Any], ids: Ids) -> dict[str, Any] | None:
    resolved = dict(action)
    for kind in _FIELDS.keys() & action.keys():
        name = resolved.pop(kind)
        if name not in ids[kind]:
            raise ValueError(f"an action names the {kind} `{name}`, but there are: {', '.join(ids[kind])}")
        resolved[_FIELDS[kind]] = ids[kind][name]
    return None if None in resolved.values() else resolved


def set_automations(client: SyncPrefectClient, wanted: Sequence[AutomationCore]) -> None:
    """Create or update the automations of the file, and delete our others: those that start with `OWNED_PREFIX`.

    An unchanged automation is not updated: an update would end its cool-down, and drift would start another run.
    """
    known = {automation.name: automation for automation in client.read_automations()}
    for automation in wanted:
        before = known.get(automation.name)
        if before is None:
            client.create_automation(automation)
            logger.info("created automation %s", automation.name)
        elif _content(before) != _content(automation):
            client.update_automation(before.id, automation)
            logger.info("updated automation %s", automation.name)
    for name in known.keys() - {automation.name for automation in wanted}:
        if name.startswith(OWNED_PREFIX):
            client.delete_automation(known[name].id)
            logger.info("deleted automation %s: it is no longer in the file", name)


def _content(automation: AutomationCore) -> dict[str, Any]:
    """Return the fields that the file can set, with Prefect's defaults."""
    content = automation.model_dump(mode="json", include=set(AutomationCore.model_fields) - {"owner_resource"})
    return content | {"trigger": _sorted(content["trigger"])}


def _sorted(trigger: dict[str, Any]) -> dict[str, Any]:
    """Return the trigger with its sets as sorted lists."""
    sets = {"after", "expect", "for_each"} & trigger.keys()
    return trigger | {key: sorted(trigger[key]) for key in sets}


class AlertReceiver(BaseModel):
    """A receiver of the file."""

    name: str
    variable: str
    """Environment variable of its address."""
    message: dict[str, Any] | None = None
    """JSON that it gets, with `{{subject}}` and `{{body}}`; None: the address says how, as Apprise's do (`mailtos://`)."""

    def block(self, environment: Mapping[str, str]) -> NotificationBlock | None:
        """Return its block, not saved yet; None if its variable is unset or empty.

        Raises:
            ParamsError: the address is of another kind.
        """
        address = environment.get(self.variable)
        if not address:
            return None
        block = apprise_block(address) if self.message is None else self._webhook(address, self.message)
        if block is None:
            raise ParamsError(
                "an address for alerts cannot be used",
                given=f"the value of {self.variable} (not shown: it is a secret)",
                expected="https://…"
                if self.message
                else "what Apprise reads, such as mailtos://USER:PASSWORD@HOST?to=…",
                do=f"correct {self.variable}, or unset it to keep what the server has",
            )
        return block

    def _webhook(self, address: str, message: dict[str, Any]) -> NotificationBlock | None:
        if not address.startswith(("https://", "http://")):
            return None
        # Prefect shows the field `url` to everyone, but not the secrets that it names.
        return CustomWebhookNotificationBlock(
            name=self.name,
            url="{{address}}",
            json_data=message,
            headers=None,
            cookies=None,
            secrets=SecretDict({"address": address}),
        )

    def saved(self, client: SyncPrefectClient, block: NotificationBlock | None) -> UUID | None:
        """Save `block`, if any; return the id of the block that the server has then, None if it has none."""
        if block is not None:
            return UUID(str(block.save(self.name, overwrite=True)))
        kind = SlackWebhook if self.message is None else CustomWebhookNotificationBlock
        try:
            return client.read_block_document_by_name(self.name, kind.get_block_type_slug(), include_secrets=False).id
        except ObjectNotFound:
            logger.info("no alerts to %s: %s is not set", self.name, self.variable)
            return None


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
    receivers: list[AlertReceiver] = []
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
