"""Asks another replica of the fleet whether it lives. The registry alone cannot tell a dead one from a slow one."""

from collections.abc import Iterable
from http.client import HTTPConnection, HTTPException
from time import monotonic
from typing import Final, Literal
from urllib.parse import urlsplit

from clozeline.registry.rollout import Replica

REPLICA: Final = "x-replica"
"""Header of /health/live with the identity of the process."""
_TIMEOUT_SECONDS: Final = 1.0
SILENT_SECONDS: Final = 30.0
"""Time after which a replica whose machine does not answer counts as dead."""

Life = Literal["alive", "dead", "silent"]
"""`silent`: no answer, which a stopped process and an unplugged machine have in common."""


def life(replica: Replica) -> Life:
    """Return whether the process of `replica` lives: another process, or none, at its address means that it is dead."""
    address = urlsplit(replica.url)
    connection = HTTPConnection(address.hostname or "", address.port, timeout=_TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/health/live")
        answer = connection.getresponse()
    except ConnectionRefusedError:
        return "dead"
    except (OSError, HTTPException):
        return "silent"
    finally:
        connection.close()
    if answer.headers.get(REPLICA) == replica.key:
        return "alive"
    return "dead" if answer.status == 200 else "silent"


class Peers:
    """The other replicas, and since when each of them has been silent, by the clock of this machine."""

    def __init__(self) -> None:
        self._silent_since: dict[str, float] = {}

    def dead(self, replicas: Iterable[Replica]) -> list[Replica]:
        """Ask each of `replicas`; return those that are dead, or have been silent for 30 s."""
        found = []
        for replica in replicas:
            state = life(replica)
            if state != "silent":
                self._silent_since.pop(replica.key, None)
            elif monotonic() - self._silent_since.setdefault(replica.key, monotonic()) >= SILENT_SECONDS:
                state = "dead"
            if state == "dead":
                found.append(replica)
        return found
