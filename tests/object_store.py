"""An S3 server (moto) on the loopback, which can be told to refuse what it is sent."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from threading import Thread
from typing import Any
from urllib.request import Request, urlopen

import boto3
from moto.core import DEFAULT_ACCOUNT_ID
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.s3.models import s3_backends
from werkzeug.serving import make_server
from werkzeug.wrappers import Response

BUCKET = "team"
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
"""Environment of clients."""
REFUSAL = """<?xml version="1.0"?><Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"""


class ObjectStore:
    """S3 with one bucket."""

    def __init__(self) -> None:
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.num_writes_left: int | None = None
        """Writes that are still accepted; None: all."""

    def _answer(self, environment: dict[str, Any], start_response: Any) -> Any:
        if environment["REQUEST_METHOD"] in {"PUT", "POST"} and self.num_writes_left is not None:
            if not self.num_writes_left:
                return Response(REFUSAL, 403, content_type="application/xml")(environment, start_response)
            self.num_writes_left -= 1
        return self._moto(environment, start_response)

    @contextmanager
    def serving(self) -> Iterator["ObjectStore"]:
        thread = Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            # What moto keeps is shared by all its servers of a process.
            urlopen(Request(f"{self.url}/moto-api/reset", method="POST"), timeout=60).close()
            self.client().create_bucket(Bucket=BUCKET)
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()

    def client(self) -> Any:
        keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
        return boto3.client("s3", endpoint_url=self.url, **keys)

    def age(self, hours: float) -> None:
        """Let every object be older: S3 has no call for it."""
        for item in s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets[BUCKET].keys.values():
            item.last_modified -= timedelta(hours=hours)

    def names(self) -> set[str]:
        found = self.client().list_objects_v2(Bucket=BUCKET).get("Contents", [])
        return {item["Key"] for item in found}
