"""Deployments, automations and receivers of alerts on a Prefect server, as infra/prefect.yaml has them.

`prefect deploy` reads the deployments itself. Automations in the file use names where the server uses ids. Receivers
are blocks of the server, which keep their addresses as secrets.
"""

import logging
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from prefect.blocks.abstract import NotificationBlock
from prefect.blocks.notifications import CustomWebhookNotificationBlock, SlackWebhook
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentUpdate, WorkPoolCreate
from prefect.exceptions import ObjectNotFound
from prefect.workers.process import ProcessWorker
from ruamel.yaml import YAML

from clozeline.orchestration.prefect_adapter import OWNED_TAG, AutomationCore, SecretDict, apprise_block, deployments_of
from clozeline.system.errors import ParamsError

# Name prefix of the automations that belong to the file.
OWNED_PREFIX = "clozeline-"

logger = logging.getLogger(__name__)
# A deployment, queue, receiver or automation of the file.
Entry = Mapping[str, Any]
# Kind of reference, then name → id; None: the server has none, so that the action is left out.
Ids = Mapping[str, Mapping[str, UUID | None]]
_FIELDS = {"deployment": "deployment_id", "receiver": "block_document_id"}


def read(file: Path) -> dict[str, Any]:
    """Read the file, and check what `prefect deploy` does not.

    Raises:
        ParamsError: a deployment lacks `OWNED_TAG`, or an automation names what the file lacks.
        ValueError: an automation is none of Prefect's.
    """
    found: dict[str, Any] = {"work_queues": [], "receivers": [], "automations": []} | YAML(typ="safe").load(file)
    for deployment in found["deployments"]:
        if OWNED_TAG not in deployment.get("tags", []):
            problem = f"{deployment['name']} in {file} has no tag `{OWNED_TAG}`: removing it there would delete nothing"
            raise ParamsError(problem, do=f"write `tags: [{OWNED_TAG}]` there")
    ids = {kind: {entry["name"]: uuid4() for entry in found[f"{kind}s"]} for kind in _FIELDS}
    for automation in found["automations"]:
        resolved(automation, ids)
    return found


def resolved(automation: Entry, ids: Ids) -> AutomationCore | None:
    """Return it in Prefect's form, whose actions have ids in place of our `deployment` and `receiver`, which are names.

    None if no action is left.

    Raises:
        ParamsError: it names something that is not in `ids`.
        ValueError: it is no automation (pydantic's `ValidationError`).
    """
    actions = [dict(action) for action in automation["actions"]]
    for action in actions:
        for kind in _FIELDS.keys() & action.keys():
            name = action.pop(kind)
            if name not in ids[kind]:
                problem = f"an automation names the {kind} `{name}`, but there are: {', '.join(ids[kind])}"
                raise ParamsError(problem, do="correct infra/prefect.yaml")
            action[_FIELDS[kind]] = ids[kind][name]
    actions = [action for action in actions if None not in action.values()]
    return AutomationCore.model_validate({**automation, "actions": actions}) if actions else None


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
    sets = {"after", "expect", "for_each"} & content["trigger"].keys()
    return content | {"trigger": content["trigger"] | {key: sorted(content["trigger"][key]) for key in sets}}


def block_of(receiver: Entry, environment: Mapping[str, str]) -> NotificationBlock | None:
    """Return the block of a receiver, not saved yet; None if its `variable`, with the address, is unset or empty.

    `message`: JSON that it gets, with `{{subject}}` and `{{body}}`; without one, the address says how, as Apprise's do
    (`mailtos://`).

    Raises:
        ParamsError: the address is of another kind.
    """
    variable, message = receiver["variable"], receiver.get("message")
    address = environment.get(variable)
    if not address:
        return None
    block: NotificationBlock | None = None
    if message is None:
        block = apprise_block(address)
    elif address.startswith(("https://", "http://")):
        # Prefect shows the field `url` to everyone, but not the secrets that it names.
        secrets = SecretDict({"address": address})
        block = CustomWebhookNotificationBlock(
            name=receiver["name"], url="{{address}}", json_data=message, headers=None, cookies=None, secrets=secrets
        )
    if block is None:
        kind = "mailtos://USER:PASSWORD@HOST?to=…" if message is None else "https://…"
        problem = f"the value of {variable} (a secret, not shown) is no address for alerts such as {kind}"
        raise ParamsError(problem, do=f"correct {variable}, or unset it to keep what the server has")
    return block


def saved(receiver: Entry, client: SyncPrefectClient, block: NotificationBlock | None) -> UUID | None:
    """Save `block`, if any; return the id of the block that the server has then, None if it has none."""
    if block is not None:
        return UUID(str(block.save(receiver["name"], overwrite=True)))
    slug = (CustomWebhookNotificationBlock if receiver.get("message") else SlackWebhook).get_block_type_slug()
    try:
        return client.read_block_document_by_name(receiver["name"], slug, include_secrets=False).id
    except ObjectNotFound:
        logger.info("no alerts to %s: %s is not set", receiver["name"], receiver["variable"])
        return None


def work_pools(deployments: Iterable[Entry]) -> list[str]:
    return sorted({deployment["work_pool"]["name"] for deployment in deployments})


def make_work_pools(client: SyncPrefectClient, wanted: Sequence[Entry]) -> None:
    """Create the missing work pools. An existing one is not changed: its limit and pause belong to the operator."""
    for name in work_pools(wanted):
        try:
            client.read_work_pool(name)
        except ObjectNotFound:
            template = ProcessWorker.get_default_base_job_template()
            client.create_work_pool(WorkPoolCreate(name=name, type=ProcessWorker.type, base_job_template=template))
            logger.info("created work pool %s", name)


def limit_work_queues(client: SyncPrefectClient, wanted: Sequence[Entry]) -> None:
    """Create the missing queues, and give each its limit."""
    for queue in wanted:
        name, pool, limit = queue["name"], queue["work_pool"], queue["concurrency_limit"]
        try:
            known = client.read_work_queue_by_name(name, work_pool_name=pool)
            client.update_work_queue(known.id, concurrency_limit=limit)
        except ObjectNotFound:
            client.create_work_queue(name, work_pool_name=pool, concurrency_limit=limit)
            logger.info("created work queue %s of %s", name, pool)


def deploy_all(prefect_file: Path) -> None:
    """Create or update every deployment of the file; raises `CalledProcessError` if `prefect deploy` refuses."""
    arguments = ["--no-prompt", "deploy", "--all", "--prefect-file", str(prefect_file)]
    subprocess.run([sys.executable, "-m", "prefect", *arguments], check=True)


def remove_others(client: SyncPrefectClient, wanted: Sequence[Entry]) -> dict[str, UUID]:
    """Delete our deployments that are not `wanted`, and the schedules of wanted ones that no longer have any.

    Return name → id of those that are left.
    """
    by_name, ids = {deployment["name"]: deployment for deployment in wanted}, dict[str, UUID]()
    for deployment in deployments_of(client):
        if deployment.name not in by_name:
            client.delete_deployment(deployment.id)
            logger.info("deleted deployment %s: it is no longer in the file", deployment.name)
            continue
        ids[deployment.name] = deployment.id
        if deployment.schedules and not by_name[deployment.name].get("schedules"):
            client.update_deployment(deployment.id, DeploymentUpdate(schedules=[]))
            logger.info("removed the schedules of %s: the file has none", deployment.name)
    return ids
