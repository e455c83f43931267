"""Receivers of alerts: blocks of the Prefect server, which keep their addresses as secrets."""

import logging
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from prefect.blocks.abstract import NotificationBlock
from prefect.blocks.notifications import CustomWebhookNotificationBlock, SlackWebhook
from prefect.client.orchestration import SyncPrefectClient
from prefect.exceptions import ObjectNotFound
from pydantic import BaseModel

from clozeline.errors import ParamsError
from clozeline.orchestration.prefect_adapter import SecretDict, apprise_block

logger = logging.getLogger(__name__)


class Receiver(BaseModel):
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
