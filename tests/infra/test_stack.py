"""The servers of compose.yaml start, work and stop as plain processes, with a real PostgreSQL and an S3 server."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import httpx
import pytest

from tests.postgres_server import Postgres, running_postgres

ROOT = Path(__file__).parents[2]
# Working directory of the MLflow services; the image has the same files there.
MLFLOW_FOLDER = ROOT / "infra/mlflow"
PREFECT_FOLDER = ROOT / "infra/prefect"

Run = Callable[..., str]
Running = Callable[..., AbstractContextManager[None]]
FreePort = Callable[[], int]


@pytest.fixture(scope="module")
def postgres(free_port: FreePort, compose: Any) -> Iterator[Postgres]:
    """New server whose databases are made by the script that the container runs."""
    with running_postgres(free_port()) as server:
        create_databases(server, compose)
        yield server


def create_databases(server: Postgres, compose: Any) -> None:
    environment = compose.environment("postgres", server.data / "client")
    subprocess.run(
        ["bash", str(ROOT / "infra/postgres/create-databases.sh")],
        env=environment | {"PGHOST": str(server.data), "PGPORT": str(server.port)},
        check=True,
    )


@pytest.fixture(scope="module")
def store(
    tmp_path_factory: pytest.TempPathFactory, compose: Any, free_port: FreePort, running: Running
) -> Iterator[dict[str, str]]:
    """S3 server and its address. It replaces the store of compose.yaml, which has no Python package."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    environment = compose.environment("store-buckets", tmp_path_factory.mktemp("store"))
    with running(["moto_server", "-H", "127.0.0.1", "-p", str(port)], environment, ROOT, f"{url}/moto-api/"):
        yield {"AWS_ENDPOINT_URL": url, "AWS_DEFAULT_REGION": "us-east-1"}


@dataclass(frozen=True)
class Mlflow:
    url: str
    password: str

    def get(self, path: str, user: str = "admin", host: str | None = None, password: str | None = None) -> int:
        headers = {"Host": host} if host else {}
        auth = (user, self.password if password is None else password)
        return httpx.get(f"{self.url}{path}", auth=auth, headers=headers, timeout=60).status_code


@pytest.fixture(scope="module")
def mlflow(
    tmp_path_factory: pytest.TempPathFactory,
    postgres: Postgres,
    store: dict[str, str],
    compose: Any,
    free_port: FreePort,
    running: Running,
    run_to_end: Run,
) -> Iterator[Mlflow]:
    home = tmp_path_factory.mktemp("mlflow")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    database = {"PGHOST": "127.0.0.1", "PGPORT": postgres.port}
    run_to_end(
        compose.command("mlflow-upgrade"), compose.environment("mlflow-upgrade", home, **database), MLFLOW_FOLDER
    )
    for _ in range(2):  # every `up` runs the one-shot jobs again
        buckets = compose.environment("store-buckets", home, **store)
        run_to_end(compose.command("store-buckets"), buckets, MLFLOW_FOLDER)
    where = {"MLFLOW_HOST": "127.0.0.1", "MLFLOW_PORT": port}
    hosts = {"MLFLOW_SERVER_ALLOWED_HOSTS": f"mlflow:5000,127.0.0.1:{port}"}
    environment = compose.environment("mlflow", home, **database, **store, **where, **hosts)
    with running(compose.command("mlflow"), environment, MLFLOW_FOLDER, f"{url}/health"):
        for _ in range(2):
            users = compose.environment("mlflow-users", home, MLFLOW_TRACKING_URI=url)
            run_to_end(compose.command("mlflow-users"), users, MLFLOW_FOLDER)
        yield Mlflow(url, environment["MLFLOW_AUTH_ADMIN_PASSWORD"])


def test_mlflow_answers_only_its_own_host_names_and_with_a_password(mlflow: Mlflow) -> None:
    experiments = "/api/2.0/mlflow/experiments/get?experiment_id=0"
    assert mlflow.get(experiments) == 200
    assert mlflow.get(experiments, host="mlflow:5000") == 200
    assert mlflow.get(experiments, host="somewhere.else") == 403
    assert mlflow.get(experiments, password="wrong") == 401
    assert mlflow.get(experiments, user="nobody") == 401


WRITE = """
import mlflow
mlflow.set_experiment("stack")
with mlflow.start_run() as run:
    mlflow.log_text("weights", "model.txt")
print("run", run.info.run_id)
"""

READ = """
import sys
import mlflow
from mlflow.exceptions import MlflowException
run_id = sys.argv[1]
print("read", mlflow.artifacts.load_text(f"runs:/{run_id}/model.txt"))
try:
    mlflow.MlflowClient().log_metric(run_id, "loss", 1.0)
except MlflowException as error:
    print("refused", error.get_http_status_code())
"""


def test_the_worker_writes_artifacts_to_the_store_and_serving_may_only_read_them(
    mlflow: Mlflow, store: dict[str, str], compose: Any, run_to_end: Run, tmp_path: Path
) -> None:
    def as_service(service: str, script: str, *arguments: str) -> list[str]:
        environment = compose.environment(service, tmp_path, MLFLOW_TRACKING_URI=mlflow.url)
        return run_to_end([sys.executable, "-c", script, *arguments], environment, tmp_path).splitlines()

    (run_id,) = [line.split()[1] for line in as_service("worker", WRITE) if line.startswith("run ")]
    said = as_service("serving", READ, run_id)
    assert "read weights" in said
    assert "refused 403" in said

    keys = compose.environment("store-buckets", tmp_path)
    bucket = boto3.client(
        "s3",
        endpoint_url=store["AWS_ENDPOINT_URL"],
        region_name=store["AWS_DEFAULT_REGION"],
        aws_access_key_id=keys["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=keys["AWS_SECRET_ACCESS_KEY"],
    )
    assert {entry["Name"] for entry in bucket.list_buckets()["Buckets"]} == {"dvc", "mlflow"}
    (stored,) = bucket.list_objects_v2(Bucket="mlflow")["Contents"]
    assert stored["Key"].startswith("artifacts/")
    assert stored["Key"].endswith(f"/{run_id}/artifacts/model.txt")


def test_prefect_keeps_its_state_in_postgres_over_a_restart(
    postgres: Postgres, compose: Any, free_port: FreePort, running: Running, run_to_end: Run, tmp_path: Path
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/api"
    where = {"PGHOST": "127.0.0.1", "PGPORT": postgres.port, "PREFECT_HOME": tmp_path / "prefect"}
    run_to_end(compose.command("prefect-upgrade"), compose.environment("prefect-upgrade", tmp_path, **where), tmp_path)
    here = {"PREFECT_SERVER_API_HOST": "127.0.0.1", "PREFECT_SERVER_API_PORT": port}
    pages = {"PREFECT_SERVER_UI_STATIC_DIRECTORY": tmp_path / "ui"}
    environment = compose.environment("prefect", tmp_path, **where, **here, **pages)
    user, _, password = environment["PREFECT_SERVER_API_AUTH_STRING"].partition(":")
    server = running(compose.command("prefect"), environment, PREFECT_FOLDER, f"{url}/health")
    pool = {"name": "kept", "type": "process"}
    with server, httpx.Client(base_url=url, auth=(user, password), timeout=30) as api:
        assert api.post("/work_pools/", json=pool).status_code == 201
        assert httpx.get(f"{url}/work_pools/kept").status_code == 401

    server = running(compose.command("prefect"), environment, PREFECT_FOLDER, f"{url}/health")
    with server, httpx.Client(base_url=url, auth=(user, password), timeout=30) as api:
        assert api.get("/work_pools/kept").status_code == 200
