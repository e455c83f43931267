"""Automations on a Prefect server, and their definitions in a file, which use names where the server uses ids."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from pydantic import BaseModel, ConfigDict

from clozeline.orchestration.prefect_adapter import AutomationCore

OWNED_PREFIX: Final = "clozeline-"
"""Name prefix of the automations that belong to the file."""

logger = logging.getLogger(__name__)


Ids = Mapping[str, Mapping[str, UUID | None]]
"""Kind of reference, then name → id; None: the server has none, so that the action is left out."""
_FIELDS: Final = {"deployment": "deployment_id", "receiver": "block_document_id"}


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
