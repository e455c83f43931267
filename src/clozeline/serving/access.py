"""Access control: checks the host name and the API key, and refuses new requests while the server stops.

In a DNS rebinding attack, a page of another site makes its own name point to this server. Its requests carry that name.
"""

import hashlib
import hmac
import os
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clozeline.serving import errors, models
from clozeline.serving.http.operation import refusal
from clozeline.system.errors import ParamsError

_HOST = re.compile(r"(?:\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[a-z0-9._-]+))(?::[0-9]*)?")
_ANY = "*"
_LOCALHOST = "localhost"
_MIN_CHARACTERS = 16
# Paths that need no API key: they reveal nothing about models or requests.
OPEN_PATHS = errors.HEALTH_PATHS | {"/", "/docs", "/openapi.json"}
_WHILE_STOPPING = errors.HEALTH_PATHS | {"/metrics", "/models"}
SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}


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

    def refusal(self, scope: Scope) -> errors.ApiError | None:
        """Return the error for a request whose `Host` is not allowed; None if it is allowed."""
        hosts = [value.decode("latin-1").lower() for name, value in scope["headers"] if name == b"host"]
        if not hosts and scope["http_version"] == "1.0":
            return None  # HTTP/1.0 does not require the header, and no browser sends it
        found = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if found is None:
            return errors.refused(
                "bad_host",
                given=f"Host: {', '.join(hosts)}" if hosts else "no Host header",
                expected="one Host header: a name or an address, with or without a port",
            )
        name = (found["v6"] or found["name"]).rstrip(".")
        if self._allows(name):
            return None
        names = ", ".join(sorted({_LOCALHOST, "127.0.0.1", "[::1]", *self.names}))
        return errors.refused("unknown_host", given=f"Host: {hosts[0]}", expected=f"one of: {names}")

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


@dataclass(frozen=True, repr=False)
class ApiKeys:
    """Hashes of the accepted API keys. Without any, every request is accepted."""

    digests: tuple[bytes, ...] = ()

    @classmethod
    def of(cls, keys: Iterable[str]) -> "ApiKeys":
        """Return the hashes of `keys`, stripped of white space; blank keys are skipped.

        Raises:
            ParamsError: a key is short enough to be guessed.
        """
        wanted = [key.strip() for key in keys if key.strip()]
        short = next((key for key in wanted if len(key) < _MIN_CHARACTERS), None)
        if short is not None:
            raise ParamsError(
                f"an API key of {len(short)} characters can be guessed",
                do=f"create one of at least {_MIN_CHARACTERS} characters with `openssl rand -hex 32`",
            )
        return cls(tuple(_digest(key.encode()) for key in wanted))

    @classmethod
    def read(cls, file: Path | None) -> "ApiKeys":
        """Read keys from `file`, one per line, and from the variable CLOZELINE_API_KEYS, separated by commas.

        Raises:
            ParamsError: the file cannot be read, or the file or the variable holds no key.
        """
        from_variable = cls._from_variable()
        if file is None:
            return from_variable
        try:
            keys = cls.of(file.read_text(encoding="utf-8").splitlines())
        except (OSError, UnicodeDecodeError) as error:
            raise _no_keys(file, str(error)) from error
        if not keys.digests:
            raise _no_keys(file, "no key")
        return cls((*keys.digests, *from_variable.digests))

    @classmethod
    def _from_variable(cls) -> "ApiKeys":
        given = keys_in_environment()
        if given is None:
            return cls()
        keys = cls.of(given)
        if not keys.digests:
            raise ParamsError(
                f"{errors.KEYS_VARIABLE} is set but holds no key, so every request would be accepted",
                do="set it to keys, separated by commas (`openssl rand -hex 32` creates one), or unset it",
            )
        return keys

    def accepts_key(self, headers: Headers) -> bool:
        """Return whether `headers` carry an accepted key. Every wrong key takes the same time."""
        given = _digest(_given_key(headers).encode("latin-1"))
        found = [hmac.compare_digest(given, digest) for digest in self.digests]
        return any(found) or not self.digests


def keys_in_environment() -> list[str] | None:
    """Return the keys in CLOZELINE_API_KEYS; None if it is not set."""
    given = os.environ.get(errors.KEYS_VARIABLE)
    return None if given is None else [key.strip() for key in given.split(",") if key.strip()]


def first_key_in_shell(file: Path | None) -> str:
    """Return a shell expression for the first key in `file`, or else in the variable; the key itself is not in it."""
    if file is None:
        return f"${{{errors.KEYS_VARIABLE}%%,*}}"
    return f"$(grep -m1 '[^[:space:]]' {shlex.quote(str(file.resolve()))})"


class Access:
    """Refuses requests with a wrong host name, without a key, or after the signal to stop; adds security headers."""

    def __init__(self, app: ASGIApp, service: models.Service, keys: ApiKeys, hosts: AllowedHosts) -> None:
        self._app = app
        self._hosts = hosts
        self._service = service
        self._keys = keys
        self._headers = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def careful(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name for name, _ in message["headers"]}
                added = [header for header in self._headers if header[0] not in present]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        await self._chosen(scope)(scope, receive, careful)

    def _chosen(self, scope: Scope) -> ASGIApp:
        path = scope["path"]
        if error := self._hosts.refusal(scope):
            self._service.metrics.rejected(error.detail.code)
            return refusal(error, scope)
        if self._service.phase == "stopping" and path not in _WHILE_STOPPING:
            self._service.metrics.rejected("stopping")
            return refusal(errors.not_ready("stopping", hang_up=True), scope)
        if self._keys.digests and path not in OPEN_PATHS:
            headers = Headers(scope=scope)
            if not self._keys.accepts_key(headers):
                self._service.metrics.rejected("no_key")
                given = "an unknown key" if _given_key(headers) else "no key"
                error = errors.refused("no_key", given=given, expected="authorization: Bearer KEY, or x-api-key: KEY")
                return refusal(error, scope)
        return self._app


def _given_key(headers: Headers) -> str:
    kind, _, bearer = headers.get("authorization", "").partition(" ")
    return bearer.strip() if kind.lower() == "bearer" else headers.get("x-api-key", "")


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _no_keys(file: Path, fault: str) -> ParamsError:
    return ParamsError(
        f"{file} with API keys cannot be used: {fault}", do="correct --api-keys-file: a text file with one key per line"
    )
