"""Stores of a test's own: S3, a project's registry, and MLflow after the delivery of an outbox."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.request import Request, urlopen

import boto3
from mlflow.entities import Run
from mlflow.tracking import MlflowClient
from moto.core import DEFAULT_ACCOUNT_ID
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.s3.models import s3_backends
from werkzeug.serving import make_server
from werkzeug.wrappers import Response

from clozeline.records.package import package_sha256
from clozeline.registry.models import CANDIDATE, CHAMPION, PREVIOUS
from clozeline.registry.versions import Registry
from clozeline.system.workspace import Workspace
from clozeline.tracking.delivery import Delivery
from clozeline.tracking.mlflow import experiment_id, prepare
from clozeline.tracking.outbox import Outbox
from tests.make.packages import write_encoder

BUCKET = "team"
# Environment of clients.
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
REFUSAL = """<?xml version="1.0"?><Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"""


class ObjectStore:
    """S3 with one bucket."""

    def __init__(self) -> None:
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.num_writes_left: int | None = None  # writes that are still accepted; None: all

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


ENCODER = "clozeline-encoder"
PROCESSOR = "Some CPU, avx2"
SPEEDUP = 1.25


def write_registry(root: Path) -> None:
    """Write two versions of an encoder, the second as champion, served in INT8; and a model made elsewhere."""
    address = Workspace(root).defaults()["MLFLOW_TRACKING_URI"]
    client = prepare(address)
    run = client.create_run(experiment_id(client, address)).info.run_id
    registry = Registry.open(address)
    for number, precision in ((1, "fp32"), (2, "int8")):
        folder = root / "work" / "mlflow" / "artifacts" / f"m-{number}"
        write_encoder(folder / "artifacts" / "package")
        sha256 = package_sha256(folder / "artifacts" / "package")
        version = registry.register(ENCODER, source=folder.as_uri(), run_id=run, package_sha256=sha256, description="")
        registry.promote(registry.serve(version, precision, PROCESSOR, SPEEDUP))
    other = registry.register("theirs", source="s3://there/m", run_id=run, package_sha256="", description="")
    registry.promote(other)


def delivered(folder: Path, address: str) -> MlflowClient:
    """Deliver the outbox in `folder`; return a client of `address`."""
    assert Delivery(Outbox(folder), address).deliver() == "done"
    return MlflowClient(address)


def run_of(client: MlflowClient, name: str) -> Run:
    """Return the only run that is or was this run of the outbox, by its name in it."""
    (found,) = client.search_runs(["1"], f"tags.`clozeline.outbox_run` = '{name}'")
    return found


def runs_of(client: MlflowClient) -> dict[str, Run]:
    """Return all runs by their name; each name occurs once."""
    runs = client.search_runs(["1"])
    by_name = {run.info.run_name: run for run in runs}
    assert len(by_name) == len(runs), [run.info.run_name for run in runs]
    return by_name


def write_versions(database: Path) -> Path:
    """Write a registry in which version 2 is the champion, version 1 the previous one and version 3 the candidate."""
    registry = Registry.open(f"sqlite:///{database}")
    for number in "123":
        registry.register(ENCODER, source="file:///x", run_id="", package_sha256=number, description="")
        registry.nominate(registry.version(ENCODER, number))
        if number != "3":
            registry.promote(registry.version(ENCODER, number))
    return database


def aliases(registry: Registry) -> dict[str, str]:
    """Return the version behind each alias of the encoder."""
    found = {alias: registry.at(ENCODER, alias) for alias in (CHAMPION, PREVIOUS, CANDIDATE)}
    return {alias: version.version for alias, version in found.items() if version}
