"""A night: the feed, the event, the scheduled run, its alert with the answer, and the check of the morning."""

import shutil
import sys
from collections.abc import Iterator
from itertools import count
from typing import Any, Final

from clozeline.registry.models import CANDIDATE
from clozeline.registry.versions import Registry
from clozeline.versions import remote
from tests.drill.prefect import Prefect
from tests.make.processes import wait_for
from tests.make.projects import copy_project
from tests.month.auditor import Audit, Auditor, FlowRun
from tests.month.installation import Installation
from tests.month.players import PLAYERS, Month
from tests.month.project import prepare
from tests.month.scenario import ENDINGS, Night

_MODEL: Final = "clozeline-encoder"
_ALERT_SECONDS: Final = 120
_PAGE: Final = 200


def live(month: Month, night: Night, auditor: Auditor) -> str:
    """Live through one night; return the state in which its last run ended."""
    installation, player = month.installation, PLAYERS[night.event]
    known = {run["id"] for run in installation.prefect.runs("nightly", "drift")}
    player.before(month, night)
    try:
        prepare(installation.root, night)
        installation.prefect.begin()
        player.during(month, night)
        installation.wait_until_quiet()
    finally:
        player.after(month, night)
    runs = [run for run in installation.prefect.runs("nightly", "drift") if run["id"] not in known]
    ending = str(runs[-1]["state"]["name"])
    if ending not in ENDINGS[night.event]:
        message = runs[-1]["state"]["message"]
        month.faults.append(f"night {night.number} ({night.event}) ended {ending}: {message}")
    month.is_remote_current = ending in {"Completed", "Held"}
    for run in runs:
        _expect_alert(month, night, run)
    if ending == "Held" and night.answer == "accept":
        _accept(installation, auditor)
    month.faults += [f"the morning after night {night.number}: {fault}" for fault in auditor.verify_new_champions()]
    return ending


def _expect_alert(month: Month, night: Night, run: dict[str, Any]) -> None:
    """Expect one message about a run that did not end well, and none about any other."""
    name, state = run["name"], run["state"]["name"]
    wanted = 0 if state in {"Completed", "Cancelled"} else 1
    alerts_about = month.installation.alerts_about
    wait_for(lambda: len(alerts_about(name, state)) >= wanted, _ALERT_SECONDS)
    if (given := len(alerts_about(name, state))) != wanted:
        month.faults.append(f"night {night.number}: {given} alerts about {name}, which ended {state}")


def _accept(installation: Installation, auditor: Auditor) -> None:
    """Type what the alert of a held version says."""
    candidate = Registry.open(installation.mlflow.url).at(_MODEL, CANDIDATE)
    if candidate:
        auditor.accepted.add((_MODEL, candidate.version))
        installation.run("clozeline", "release", "--accept")


def make_auditor(installation: Installation) -> Auditor:
    """Return an auditor whose folder has what git holds, and whose cache is empty."""
    root = copy_project(installation.folder / "auditor" / "project")
    shutil.copy(installation.root / ".dvc" / "config", root / ".dvc" / "config")
    shutil.copy(installation.root / "params.yaml", root)
    return Auditor(root, installation.mlflow.url)


def audit(installation: Installation, auditor: Auditor) -> Audit:
    """Return the audit of the month."""
    shutil.rmtree(installation.folder / "auditor" / "project" / ".dvc" / "cache", ignore_errors=True)
    prefect = installation.prefect
    # The flows within a run that was killed are marked Crashed after their own last heartbeats.
    wait_for(lambda: all(run.has_ended for run in _flow_runs(prefect)), _ALERT_SECONDS, every_seconds=2)
    return auditor.audit(list(_flow_runs(prefect)), remote.missing(installation.root) or 0)


def _flow_runs(prefect: Prefect) -> Iterator[FlowRun]:
    def listed(what: str) -> Iterator[dict[str, Any]]:
        for offset in count(0, _PAGE):
            page = prefect.ask("POST", f"/{what}/filter", json={"limit": _PAGE, "offset": offset})
            yield from page
            if len(page) < _PAGE:
                return

    flows = {flow["id"]: flow["name"] for flow in listed("flows")}
    return (FlowRun.of(run, flows) for run in listed("flow_runs"))


def tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
