"""infra/prefect.yaml and flows/deploy.py with a real Prefect server, and with a worker that picks up a run."""

import sqlite3
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from clozeline.flows.drift import EVENT, RESOURCE
from tests.infra.prefect_project import ROOT, Server
from tests.make.processes import run_to_end, wait_for

pytestmark = pytest.mark.deployment


def add_leftovers(file: dict[str, Any]) -> None:
    file["deployments"].append(file["deployments"][0] | {"name": "leftover"})
    file["automations"].append(file["automations"][0] | {"name": "clozeline-leftover"})


def drop_schedules(file: dict[str, Any]) -> None:
    del file["deployments"][0]["schedules"]


def automations(server: Server) -> dict[str, dict[str, Any]]:
    answer = server.api.post("/automations/filter", json={}).raise_for_status()
    return {automation["name"]: automation for automation in answer.json()}


def runs(server: Server, *, auto_scheduled: bool) -> int:
    body = {"deployments": {"name": {"any_": ["nightly"]}}}
    found = server.api.post("/flow_runs/filter", json=body).raise_for_status().json()
    return sum(run["auto_scheduled"] == auto_scheduled for run in found)


def test_deploying_again_after_an_edit_applies_the_file(server: Server) -> None:
    server.deploy(add_leftovers)
    first, before = server.deployments(), automations(server)
    assert set(first) == {"nightly", "drift", "leftover"}

    said = server.deploy()
    assert "deleted deployment leftover" in said
    assert "python -m clozeline.flows.worker --pool clozeline" in said
    second, after = server.deployments(), automations(server)
    assert set(second) == {"nightly", "drift"}, "a deployment that left the file stayed on the server"
    assert second["nightly"]["id"] == first["nightly"]["id"]
    assert {name: its["id"] for name, its in before.items() if name != "clozeline-leftover"} == {
        name: its["id"] for name, its in after.items()
    }

    (schedule,) = second["nightly"]["schedules"]
    assert schedule["active"]
    assert (schedule["schedule"]["cron"], schedule["schedule"]["timezone"]) == ("0 4 * * *", "Europe/Paris")
    assert [schedule["active"] for schedule in second["drift"]["schedules"]] == [False]
    assert second["nightly"]["global_concurrency_limit"] is None, "Prefect cancels a run that cannot renew its lease"
    queues = server.api.post("/work_pools/clozeline/queues/filter", json={}).raise_for_status().json()
    assert {queue["name"]: queue["concurrency_limit"] for queue in queues} == {"default": None, "nightly": 1}
    assert (second["nightly"]["work_pool_name"], second["nightly"]["work_queue_name"]) == ("clozeline", "nightly")
    assert server.api.get("/work_pools/clozeline").raise_for_status().json()["type"] == "process"
    # With SQLAlchemy 2.1, Prefect 3.8's scheduler fails at each of its inserts, so no scheduled run ever starts.
    assert wait_for(lambda: bool(runs(server, auto_scheduled=True)), 120)

    server.deploy(drop_schedules)
    assert server.nightly()["schedules"] == [], "a schedule that left the file stayed on the server"
    crashed = after["clozeline-crashed"]
    heartbeat_seconds = int(server.environment["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"])
    assert 2 * heartbeat_seconds < crashed["trigger"]["within"] <= 120 - 30, "two heartbeats late, and within 2 minutes"
    assert crashed["actions"][0]["state"] == "CRASHED"


PUT_OFF = "import asyncio, start_server; asyncio.run(start_server.put_off_deadlines())"


def test_a_restarted_server_waits_for_the_next_heartbeat_of_every_run(server: Server) -> None:
    server.deploy()
    flow = {"resource.id": f"prefect.flow.{uuid4()}", "resource.role": "flow", "resource.name": "pipeline"}
    heartbeat = {
        "occurred": datetime.now(UTC).isoformat(),
        "event": "prefect.flow-run.heartbeat",
        "resource": {"prefect.resource.id": f"prefect.flow-run.{uuid4()}"},
        "related": [{f"prefect.{name}": value for name, value in flow.items()}],
        "id": str(uuid4()),
    }
    server.api.post("/events", json=[heartbeat]).raise_for_status()
    database = sqlite3.connect(f"file:{server.home.parent / 'prefect.db'}?mode=ro", uri=True)

    def deadlines() -> list[datetime]:
        buckets = 'SELECT "end" FROM automation_bucket JOIN automation ON automation.id = automation_id WHERE name = ?'
        found = database.execute(buckets, ("clozeline-crashed",)).fetchall()
        return [datetime.fromisoformat(end).replace(tzinfo=UTC) for (end,) in found]

    assert wait_for(lambda: bool(deadlines()), 240), "the automation gets no heartbeats"
    assert max(deadlines()) < datetime.now(UTC) + timedelta(seconds=90)
    run_to_end([sys.executable, "-c", PUT_OFF], ROOT / "infra/prefect", server.own_environment)
    assert min(deadlines()) > datetime.now(UTC) + timedelta(seconds=60)
    database.close()


def test_drift_starts_one_retraining_a_day(server: Server) -> None:
    """The last test with this server, whose clock follows the latest event."""

    def tell(occurred: datetime) -> None:
        event = {"id": str(uuid4()), "occurred": occurred.isoformat(), "event": EVENT}
        event_of_encoder = event | {"resource": {"prefect.resource.id": f"{RESOURCE}.encoder"}}
        server.api.post("/events", json=[event_of_encoder]).raise_for_status()

    def retrainings() -> int:
        return runs(server, auto_scheduled=False)

    server.deploy()
    before, now = retrainings(), datetime.now(UTC)

    def told_and_started() -> bool:
        tell(datetime.now(UTC))  # more than once: the server knows a new automation only after some seconds
        time.sleep(1)
        return retrainings() > before

    assert wait_for(told_and_started, 120)
    server.deploy()
    for hours in (1, 23):
        tell(now + timedelta(hours=hours))
    tell(now + timedelta(hours=25))
    assert wait_for(lambda: retrainings() > before + 1, 240), "the next day starts another retraining"
    assert retrainings() == before + 2, "one retraining per day, even if the file is deployed again"
