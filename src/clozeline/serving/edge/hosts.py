"""Host names under which the server answers.

In a DNS rebinding attack, a page of another site makes its own name point to this server. Its requests carry that name.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address

from starlette.types import Scope

from clozeline.serving.errors import ApiError, problem

_HOST = re.compile(r"(?:\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[a-z0-9._-]+))(?::[0-9]*)?")
_ANY = "*"
_LOCALHOST = "localhost"


@dataclass(frozen=True, slots=True)
class AllowedHosts:
    """Loopback names, `names`, and with `by_address` every IP address: a rebound name is never an address."""

    names: frozenset[str] = frozenset()
    by_address: bool = False

    @classmethod
    def of(cls, listens_on: str, more: Iterable[str] = ()) -> "AllowedHosts":
        """Return the names of a server that listens on `listens_on`; `*` among `more` allows every name."""
        names = frozenset(name.strip("[]").rstrip(".").lower() for name in (listens_on, *more))
        return cls(names, by_address=not _is_loopback(listens_on))

    def refusal(self, scope: Scope) -> ApiError | None:
        """Return the error for a request whose `Host` is not allowed; None if it is allowed."""
        hosts = [value.decode("latin-1").lower() for name, value in scope["headers"] if name == b"host"]
        if not hosts and scope["http_version"] == "1.0":
            return None  # HTTP/1.0 does not require the header, and no browser sends it
        found = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if found is None:
            return _no_host(hosts)
        name = (found["v6"] or found["name"]).rstrip(".")
        return None if self._allows(name) else _other_host(hosts[0], self.names)

    def _allows(self, name: str) -> bool:
        if name in self.names or _ANY in self.names or _is_loopback(name):
            return True
        return self.by_address and _is_address(name)


def _is_loopback(name: str) -> bool:
    return ip_address(name).is_loopback if _is_address(name) else name == _LOCALHOST


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _no_host(given: list[str]) -> ApiError:
    return problem(
        400,
        "bad_host",
        "the request needs exactly one valid Host header",
        given=f"Host: {', '.join(given)}" if given else "no Host header",
        expected="one Host header: a name or an address, with or without a port",
        do="correct the client, or the proxy in front of the server",
        headers={"connection": "close"},
    )


def _other_host(given: str, names: frozenset[str]) -> ApiError:
    return problem(
        421,
        "unknown_host",
        "this server does not answer under this host name",
        given=f"Host: {given}",
        expected=f"one of: {', '.join(sorted({_LOCALHOST, '127.0.0.1', '[::1]', *names}))}",
        do="use one of these names, or start the server with `--allowed-host NAME`",
    )
