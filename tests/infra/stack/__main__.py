"""`python -m tests.infra.stack PROJECT STATE`: the stack is up, runs a night, serves, is backed up, goes down, loses
all, is restored and comes up again.

Prints a line of JSON for each step. moto stands in for Garage, Debian's PostgreSQL for that of the image, and one
network for all.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import httpx

from tests.infra.stack.compose_file import ROOT, Compose
from tests.infra.stack.sandbox import Sandbox, machine
from tests.infra.stack.services import Services
from tests.make.processes import answers, wait_for
from tests.make.servers import running_postgres

POSTGRES_PORT, STORE_PORT = 5432, 3900
# Commands that end with the run, with exit code 1 if it fails.
NIGHT, DRIFT = (
    ["prefect", "deployment", "run", name, "--watch", "--watch-interval", "1"]
    for name in ("nightly/nightly", "drift/drift")
)
TEXT = "the list of open files"
WRITE = """
import mlflow
from mlflow.exceptions import MlflowException
client = mlflow.MlflowClient()
version = client.get_model_version_by_alias("clozeline-encoder", "champion")
try:
    client.log_metric(version.run_id, "loss", 1.0)
except MlflowException as error:
    print("refused", error.get_http_status_code())
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("project", type=Path, help="checkout that the worker runs")
    parser.add_argument("state", type=Path, help="folder for volumes and logs")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        live(Services(Sandbox(Compose.read(), given.project, given.state)))
        return
    given.state.mkdir(parents=True, exist_ok=True)
    hosts = given.state / "hosts"
    hosts.write_text(f"127.0.0.1 localhost {' '.join(Compose.read().services)}\n")
    here = [sys.executable, "-m", "tests.infra.stack", str(given.project), str(given.state), "--inside"]
    sys.exit(subprocess.run([*machine(hosts), *here], cwd=ROOT).returncode)


def live(services: Services) -> None:
    """Take the stack through its life. After `down`, the databases and the store are emptied and restored."""
    compose = services.sandbox.compose
    with databases(compose), store(services):
        try:
            services.up()
            say(step="up", services=sorted(services.running))
            say(step="access", **_access(compose))
            services.run("worker", NIGHT)
            say(step="nightly", **_last_night(compose))
            say(step="store", **_stored(services))
            services.up("serving")
            say(step="serving", **_asked())
            say(step="drift", said=services.run("worker", DRIFT).splitlines()[-1:])
            say(step="write as serving", said=services.run("serving", ["python", "-c", WRITE]).split()[-2:])
            say(step="backup", said=[services.run(job) for job in ("backup-databases", "backup")])
            say(step="restore in use", said=_refused(services, "restore"))
            say(step="down", exit_codes=services.down())
            _lose_everything(services)
            say(step="restore", said=[services.run(job) for job in ("store-buckets", "restore-store", "restore")])
            services.up()
            services.up("serving")
            say(step="up again", **_asked(), **_last_night(compose))
        finally:
            say(step="down again", exit_codes=services.down())


def say(**facts: object) -> None:
    sys.stdout.write(f"{json.dumps(facts)}\n")
    sys.stdout.flush()


@contextmanager
def databases(compose: Compose) -> Iterator[None]:
    """Run PostgreSQL, whose databases are made by the script that the container runs."""
    with running_postgres(POSTGRES_PORT) as server:
        script = str(ROOT / "infra/postgres/create-databases.sh")
        variables = {**compose.variables("mlflow-upgrade"), **compose.secrets, "PATH": "/usr/bin:/bin"}
        where = {"PGHOST": str(server.data), "PGPORT": str(server.port), "POSTGRES_USER": "postgres"}
        subprocess.run(["bash", script], env={**variables, **where}, check=True, stdout=subprocess.DEVNULL)
        yield


@contextmanager
def store(services: Services) -> Iterator[None]:
    with services.log("store").open("ab") as log:
        moto = Path(sys.executable).with_name("moto_server")
        process = subprocess.Popen([moto, "-H", "127.0.0.1", "-p", str(STORE_PORT)], stdout=log, stderr=log)
    try:
        assert wait_for(lambda: answers(f"http://127.0.0.1:{STORE_PORT}/moto-api/data.json"), 240)
        yield
    finally:
        process.terminate()
        process.wait()


def _asked() -> dict[str, object]:
    """Ask the server for a vector, under the name that other services know."""
    with httpx.Client(base_url="http://127.0.0.1:8000", headers={"host": "serving"}, timeout=60) as client:
        vector = client.post("/embed", json={"inputs": TEXT}).raise_for_status().json()
        models = client.get("/models").raise_for_status().json()
    return {"vector": vector, "models": {model["name"]: model["version"] for model in models["models"]}}


def _access(compose: Compose) -> dict[str, int]:
    """Ask MLflow and Prefect as their users and as others; return the statuses."""
    password = compose.variables("mlflow")["MLFLOW_AUTH_ADMIN_PASSWORD"]
    experiments = "http://127.0.0.1:5000/api/2.0/mlflow/experiments/get?experiment_id=0"

    def asked(host: str = "mlflow:5000", user: str = "admin", password: str = password) -> int:
        return httpx.get(experiments, auth=(user, password), headers={"host": host}, timeout=60).status_code

    return {
        "own name": asked(),
        "another name": asked(host="somewhere.else"),
        "wrong password": asked(password="wrong"),
        "prefect without password": httpx.get("http://127.0.0.1:4200/api/work_pools/clozeline").status_code,
    }


def _stored(services: Services) -> dict[str, Any]:
    """List the buckets, and the folders in which MLflow keeps artifacts."""
    client = _client(services)
    objects = client.list_objects_v2(Bucket="mlflow")["Contents"]
    return {
        "buckets": sorted(bucket["Name"] for bucket in client.list_buckets()["Buckets"]),
        "folders": sorted({item["Key"].partition("/")[0] for item in objects}),
    }


def _client(services: Services) -> Any:
    keys = services.sandbox.compose.variables("store-buckets")
    return boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{STORE_PORT}",
        region_name="us-east-1",
        aws_access_key_id=keys["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=keys["AWS_SECRET_ACCESS_KEY"],
    )


def _refused(services: Services, job: str) -> str:
    try:
        services.run(job)
    except AssertionError as error:
        return str(error)
    return "not refused"


def _lose_everything(services: Services) -> None:
    """Empty both databases and the store, as new volumes are."""
    variables = services.sandbox.compose.variables("restore")
    for role, database in (("mlflow", "mlflow"), ("mlflow", "mlflow_auth"), ("prefect", "prefect")):
        where = ["psql", "-h", "127.0.0.1", "-p", str(POSTGRES_PORT), "-U", role, "-d", database]
        password = variables[f"{role.upper()}_DB_PASSWORD"]
        empty = "DROP SCHEMA public CASCADE; CREATE SCHEMA public"
        subprocess.run(
            [*where, "-q", "-c", empty], env={"PATH": "/usr/bin:/bin", "PGPASSWORD": password}, check=True, text=True
        )
    client = _client(services)
    for bucket in client.list_buckets()["Buckets"]:
        for item in client.list_objects_v2(Bucket=bucket["Name"]).get("Contents", []):
            client.delete_object(Bucket=bucket["Name"], Key=item["Key"])
        client.delete_bucket(Bucket=bucket["Name"])


def _last_night(compose: Compose) -> dict[str, Any]:
    """Return the states of the nights that were asked for; the schedule may start one of its own."""
    user, _, password = compose.variables("prefect")["PREFECT_SERVER_API_AUTH_STRING"].partition(":")
    body = {"flows": {"name": {"any_": ["nightly"]}}, "flow_runs": {"start_time": {"is_null_": False}}}
    answer = httpx.post("http://127.0.0.1:4200/api/flow_runs/filter", json=body, auth=(user, password), timeout=60)
    asked = [run["state"] for run in answer.json() if not run["auto_scheduled"]]
    return {"nights": [f"{state['name']} {state.get('message') or ''}" for state in asked]}


if __name__ == "__main__":
    main()
