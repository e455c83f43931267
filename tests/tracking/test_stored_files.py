"""The store of MLflow's files may be away or refuse the key: one clear error, on every way to its files."""

from collections.abc import Iterator

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from clozeline.records.record import Lock
from clozeline.registry.models import Registered
from clozeline.registry.publishing import Publisher
from clozeline.system.errors import ArtifactError, TransientError
from clozeline.tracking.stored_files import files_of, lock_of, remove_files_of
from tests.make.stores import BUCKET, ObjectStore

LOCK = "schema: '2.0'\nstages: {}\n"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    keys = {"ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret", "DEFAULT_REGION": "us-east-1", "MAX_ATTEMPTS": "1"}
    for name, value in keys.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    with ObjectStore().serving() as store:
        monkeypatch.setenv("MLFLOW_S3_ENDPOINT_URL", store.url)
        yield store


@pytest.fixture
def run(store: ObjectStore, address: str) -> Run:
    """A run with its dvc.lock in a bucket."""
    client = MlflowClient(address, registry_uri=address)
    run = client.create_run(client.create_experiment("clozeline", artifact_location=f"s3://{BUCKET}/mlflow"))
    client.log_text(run.info.run_id, LOCK, "dvc.lock")
    client.log_text(run.info.run_id, LOCK, "evidence/dvc.lock")
    return run


def test_files_in_a_bucket_are_read_and_removed(run: Run, address: str) -> None:
    assert lock_of(run, address) == Lock(stages={})
    assert files_of(run, address) == dict.fromkeys(("dvc.lock", "evidence/dvc.lock"), len(LOCK))
    remove_files_of(run, address)
    assert files_of(run, address) == {}
    assert lock_of(run, address) is None


def test_the_error_of_a_refused_store_key_names_the_settings(run: Run, address: str, store: ObjectStore) -> None:
    store.num_writes_left = 0
    with pytest.raises(ArtifactError, match=r"store of MLflow's files .* refuses the key") as caught:
        remove_files_of(run, address)
    assert "AccessDenied" in caught.value.problem
    assert "AWS_ACCESS_KEY_ID" in caught.value.do


def test_every_access_to_an_unreachable_store_names_the_store(
    run: Run, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_S3_ENDPOINT_URL", "http://127.0.0.1:9")
    version = Registered(
        name="clozeline-encoder", version="1", run_id=run.info.run_id, package_sha256="", was_rolled_back=False
    )
    publisher = Publisher(address)
    for read in (
        lambda: lock_of(run, address),
        lambda: files_of(run, address),
        lambda: publisher.evidence(version).__enter__(),
    ):
        with pytest.raises(TransientError, match=r"store of MLflow's files .* does not answer") as caught:
            read()
        assert "127.0.0.1:9" in caught.value.problem
