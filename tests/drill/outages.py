"""Real outages: MLflow's and Prefect's servers are killed and start again later; a worker and its flow are killed."""

import shutil
import time
from pathlib import Path
from typing import Any

from clozeline.tracking.runs import deliver_waiting
from tests.drill.kills import Tally
from tests.drill.prefect import Prefect, prefect_over
from tests.drill.project import digest, make_project, orphans, processes_in, require_clean, run_command, said
from tests.make.processes import wait_for
from tests.make.servers import MlflowServer, held_ports

_LONGEST_SECONDS = 1800.0
_STEP_SECONDS = 0.25


def drill_mlflow(folder: Path, outage_seconds: float, tally: Tally) -> None:
    """Kill MLflow's server in the middle of a training that is longer than the outage."""
    (folder / "server").mkdir(parents=True)
    steps = int((outage_seconds + 20) / _STEP_SECONDS)
    root = make_project(folder / "project", steps=steps, step_seconds=_STEP_SECONDS)
    with held_ports() as free_port:
        server = MlflowServer(folder / "server", free_port())
        try:
            server.start()
            run = run_command(root, {"MLFLOW_TRACKING_URI": server.url})
            wait_for((root / "work/checkpoint").exists, _LONGEST_SECONDS)
            server.stop()
            time.sleep(outage_seconds)
            server.start()
            ended = run.wait(outage_seconds + _LONGEST_SECONDS)
            fault = "" if ended == 0 else said(root)[-3000:]
            deliver_waiting(root / "work/outbox", server.url)  # as the next run does if this one ended early
            _count(tally, f"MLflow's server, for {outage_seconds:.0f} s", root, orphans(root), fault, server.url)
        finally:
            server.stop()


def drill_prefect(folder: Path, outage_seconds: float, tally: Tally) -> None:
    """Kill the server during a training and start it again; then kill the worker and its flow in another run."""
    root = make_project(
        folder / "project", steps=int((outage_seconds + 150) / _STEP_SECONDS), step_seconds=_STEP_SECONDS
    )
    with prefect_over(root, folder / "home") as prefect:
        _kill_server(prefect, outage_seconds, tally)
        whole = digest(root)
        (root / "model.txt").unlink()
        shutil.rmtree(root / ".dvc/cache")  # so that the same training has to run again
        _kill_worker(prefect, outage_seconds, tally)
        tally.different_bytes += digest(root) != whole


def _kill_server(prefect: Prefect, outage_seconds: float, tally: Tally) -> None:
    run = prefect.begin()
    assert wait_for((prefect.root / "work/checkpoint").exists, _LONGEST_SECONDS), prefect.logs()
    prefect.kill("server")
    time.sleep(outage_seconds)
    prefect.start_server()
    seen = {prefect.state(run)}

    def has_ended() -> bool:
        seen.add(prefect.state(run))
        return not seen <= {"RUNNING", "PENDING"}

    wait_for(has_ended, outage_seconds + _LONGEST_SECONDS)
    runs = prefect.runs()
    fault = "" if seen == {"RUNNING", "COMPLETED"} and len(runs) == 1 else f"states {seen}: {_told(runs)}"
    _count_flow(tally, f"Prefect's server, for {outage_seconds:.0f} s", prefect, fault)


def _kill_worker(prefect: Prefect, outage_seconds: float, tally: Tally) -> None:
    run = prefect.begin()
    assert wait_for((prefect.root / "work/checkpoint").exists, _LONGEST_SECONDS), prefect.logs()
    time.sleep(5)
    killed_at = time.monotonic()
    prefect.kill_worker_and_flow()
    prefect.start_worker()
    wait_for(lambda: prefect.state(run) == "CRASHED", 300)
    seconds = time.monotonic() - killed_at
    wait_for(lambda: prefect.runs()[-1]["state"]["type"] == "COMPLETED", outage_seconds + _LONGEST_SECONDS)
    runs = prefect.runs()
    states = [known["state"]["type"] for known in runs]
    fault = "" if states == ["COMPLETED", "CRASHED", "COMPLETED"] else _told(runs)
    _count_flow(tally, f"worker and flow: Crashed after {seconds:.0f} s, and run again", prefect, fault)


def _count_flow(tally: Tally, what: str, prefect: Prefect, fault: str) -> None:
    left = [line for line in processes_in(prefect.root) if "steps.py" in line or "reproduce" in line]
    address = f"sqlite:///{prefect.root / 'work/mlflow/mlflow.db'}"
    _count(tally, what, prefect.root, left, fault and f"{fault}\n{prefect.logs()}", address)


def _count(tally: Tally, what: str, root: Path, left: list[str], fault: str, tracking_uri: str) -> None:
    tally.kills[what] += 1
    try:
        assert not fault, fault
        assert not left, left
        require_clean(root, tracking_uri)
    except AssertionError as error:
        fault = f"{what}: {error}"
    tally.add_round(left, fault=fault)


def _told(runs: list[dict[str, Any]]) -> str:
    return ", ".join(f"{run['name']} {run['state']['type']} ({run['state']['message']})" for run in runs)
