"""Who is let in: those with a key, if keys are set, and nobody new once the server stops."""

import hashlib
import hmac
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clozeline.errors import ParamsError
from clozeline.serving import HEALTH_PATHS, KEYS_VARIABLE
from clozeline.serving.errors import ApiError, not_ready, problem
from clozeline.serving.models.service import Service
from clozeline.serving.protocols.dialects import refusal

_MIN_CHARACTERS = 16
OPEN_PATHS = HEALTH_PATHS | {"/", "/docs", "/openapi.json"}
"""Need no key: they tell nothing of the models or of what is asked."""
_WHILE_STOPPING = HEALTH_PATHS | {"/metrics", "/models"}
SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}


@dataclass(frozen=True, repr=False)
class ApiKeys:
    """Hashes of the keys that are let in; none: everybody is."""

    digests: tuple[bytes, ...] = ()

    @classmethod
    def of(cls, keys: Iterable[str]) -> "ApiKeys":
        """Of keys as they are written in a file or variable, blank ones left out.

        Raises:
            ParamsError: one is short enough to be guessed.
        """
        wanted = [key.strip() for key in keys if key.strip()]
        short = next((key for key in wanted if len(key) < _MIN_CHARACTERS), None)
        if short is not None:
            raise ParamsError(
                "an API key can be guessed",
                given=f"a key of {len(short)} characters",
                expected=f"at least {_MIN_CHARACTERS} characters",
                do="make one with `openssl rand -hex 32`",
            )
        return cls(tuple(_digest(key.encode()) for key in wanted))

    @classmethod
    def read(cls, file: Path | None) -> "ApiKeys":
        """From `file`, a key on each line, and from the variable CLOZELINE_API_KEYS, parted by commas.

        Raises:
            ParamsError: the file cannot be read; or what is there holds no key.
        """
        from_variable = cls._from_variable()
        if file is None:
            return from_variable
        try:
            keys = cls.of(file.read_text(encoding="utf-8").splitlines())
        except (OSError, UnicodeDecodeError) as error:
            raise _no_keys(file, str(error)) from error
        if not keys.digests:
            raise _no_keys(file, "no key in it")
        return cls((*keys.digests, *from_variable.digests))

    @classmethod
    def _from_variable(cls) -> "ApiKeys":
        given = os.environ.get(KEYS_VARIABLE)
        if given is None:
            return cls()
        keys = cls.of(given.split(","))
        if not keys.digests:
            raise ParamsError(
                f"{KEYS_VARIABLE} is set, and would let everybody in",
                given="no key in it",
                expected="keys with commas between them",
                do=f"set it to a key (`openssl rand -hex 32` makes one), or `unset {KEYS_VARIABLE}`",
            )
        return keys

    def let_in(self, headers: Headers) -> bool:
        """Whether `headers` have one of the keys. Takes as long for any key that is wrong."""
        given = _digest(_given_key(headers).encode("latin-1"))
        found = [hmac.compare_digest(given, digest) for digest in self.digests]
        return any(found) or not self.digests


class Access:
    """Refuses who has no key, and what comes after the signal to stop; adds the headers of a careful server."""

    def __init__(self, app: ASGIApp, service: Service, keys: ApiKeys) -> None:
        self._app = app
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
        if self._service.phase == "stopping" and path not in _WHILE_STOPPING:
            self._service.metrics.rejected("stopping")
            return refusal(not_ready("stopping", hang_up=True), scope)
        if self._keys.digests and path not in OPEN_PATHS:
            headers = Headers(scope=scope)
            if not self._keys.let_in(headers):
                self._service.metrics.rejected("no_key")
                return refusal(_no_key("a key that is not one of them" if _given_key(headers) else "no key"), scope)
        return self._app


def _given_key(headers: Headers) -> str:
    kind, _, bearer = headers.get("authorization", "").partition(" ")
    return bearer.strip() if kind.lower() == "bearer" else headers.get("x-api-key", "")


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _no_keys(file: Path, given: str) -> ParamsError:
    return ParamsError(
        "the file of API keys cannot be used",
        given=f"{file}: {given}",
        expected="a text file with a key on each line",
        do="correct --api-keys-file",
    )


def _no_key(given: str) -> ApiError:
    return problem(
        401,
        "no_key",
        "this server answers to those who have a key",
        given=given,
        expected="authorization: Bearer KEY, or x-api-key: KEY",
        do="ask whoever runs this server for a key",
        headers={"www-authenticate": "Bearer"},
    )
