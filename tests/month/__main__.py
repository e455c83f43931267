"""`python -m tests.month --nights N --seed S`: a month; the last line is JSON, and the exit code 0 if it was sound.

A night is the feed, the event, the scheduled run, its alert with the answer, and the check of the morning. TERM ends
the month after the present night, with the audit.
"""

import argparse
import json
import logging
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import count, takewhile
from pathlib import Path
from typing import Any, Final

import psutil
from httpx import HTTPError
from mlflow.exceptions import MlflowException

from clozeline.registry.models import CANDIDATE
from clozeline.registry.versions import Registry
from clozeline.system.errors import ClozelineError
from clozeline.versions import remote
from tests.drill.prefect import Prefect
from tests.make.processes import wait_for
from tests.make.projects import copy_project
from tests.month.auditor import Audit, Auditor, FlowRun
from tests.month.installation import Installation, running_installation
from tests.month.players import PLAYERS, Month
from tests.month.scenario import ENDINGS, Night, nights, prepare

_MODEL: Final = "clozeline-encoder"
_ALERT_SECONDS: Final = 120
_PAGE: Final = 200


def main() -> int:
    arguments = _arguments()
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # the store's requests
    given = arguments.folder
    with (
        nullcontext(given) if given else tempfile.TemporaryDirectory() as folder,
        running_installation(Path(folder).resolve()) as installation,
    ):
        month, auditor = Month(installation, arguments.outage_seconds), _auditor_of(installation)
        scenario, lived = nights(arguments.nights, arguments.seed), 0
        for night in takewhile(lambda _: not told, scenario):
            lived = night.number
            started, num_faults = time.monotonic(), len(month.faults)
            ending = _lived(month, night, auditor)
            seconds = time.monotonic() - started
            _tell(f"night {night.number}, {night.event}: {ending}, {night.num_texts} texts, {seconds:.0f} s")
            for fault in month.faults[num_faults:]:
                _tell(f"  {fault}")
        found = _audited(installation, auditor)
    for place, number in reversed((month.kills + month.outages).most_common()):
        _tell(f"{number:4} x {place}")
    for fault in [*month.faults, *found.lost, *found.unverified]:
        _tell(f"fault: {fault}")
    counts = {"nights": lived, "kills": month.kills.total(), "outages": month.outages.total()}
    counts |= {"promotions": found.promotions, "held": found.held}
    _tell(json.dumps(counts | {"lost": len(found.lost), "unverified": len(found.unverified)}))
    return int(bool(month.faults) or not found.is_clean)


def _lived(month: Month, night: Night, auditor: Auditor) -> str:
    """Live through a night; what breaks it is a fault, and the month goes on."""
    try:
        return _live(month, night, auditor)
    except (AssertionError, ClozelineError, HTTPError, MlflowException, OSError, psutil.Error) as error:
        month.faults.append(f"night {night.number} ({night.event}) broke off: {error!r}")
        return "broken off"


def _live(month: Month, night: Night, auditor: Auditor) -> str:
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


def _auditor_of(installation: Installation) -> Auditor:
    """Return an auditor whose folder has what git holds, and whose cache is empty."""
    root = copy_project(installation.folder / "auditor" / "project")
    shutil.copy(installation.root / ".dvc" / "config", root / ".dvc" / "config")
    shutil.copy(installation.root / "params.yaml", root)
    return Auditor(root, installation.mlflow.url)


def _audited(installation: Installation, auditor: Auditor) -> Audit:
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


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.month", description=__doc__)
    parser.add_argument("--nights", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0, help="of the events, their moments and the answers to alerts")
    parser.add_argument("--outage-seconds", type=float, default=100, help="for which a server is away")
    parser.add_argument("--folder", type=Path, help="a new folder that is kept afterwards; by default a temporary one")
    return parser.parse_args()


def _tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
