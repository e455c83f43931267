"""Flow runs of tests after delivery to MLflow, and the MLflow runs that result."""

from pathlib import Path

from mlflow.entities import Run
from mlflow.tracking import MlflowClient

from clozeline.tracking.delivery import Delivery
from clozeline.tracking.outbox import Outbox


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
