"""`python -m tests.month --nights N --seed S`: a month; the last line is JSON, and the exit code 0 if it was sound.

TERM ends it after the present night, with the audit.
"""

import argparse
import json
import logging
import signal
import sys
import tempfile
import time
from contextlib import nullcontext
from itertools import takewhile
from pathlib import Path

import psutil
from httpx import HTTPError
from mlflow.exceptions import MlflowException

from clozeline.system.errors import ClozelineError
from tests.month.auditor import Auditor
from tests.month.installation import running_installation
from tests.month.nights import audit, live, make_auditor, tell
from tests.month.players import Month
from tests.month.scenario import Night, nights


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
        month, auditor = Month(installation, arguments.outage_seconds), make_auditor(installation)
        scenario, lived = nights(arguments.nights, arguments.seed), 0
        for night in takewhile(lambda _: not told, scenario):
            lived = night.number
            started, num_faults = time.monotonic(), len(month.faults)
            ending = _live(month, night, auditor)
            seconds = time.monotonic() - started
            tell(f"night {night.number}, {night.event}: {ending}, {night.num_texts} texts, {seconds:.0f} s")
            for fault in month.faults[num_faults:]:
                tell(f"  {fault}")
        found = audit(installation, auditor)
    for count, place in sorted((count, place) for place, count in (month.kills + month.outages).items()):
        tell(f"{count:4} x {place}")
    for fault in [*month.faults, *found.lost, *found.unverified]:
        tell(f"fault: {fault}")
    counts = {"nights": lived, "kills": month.kills.total(), "outages": month.outages.total()}
    counts |= {"promotions": found.promotions, "held": found.held}
    tell(json.dumps(counts | {"lost": len(found.lost), "unverified": len(found.unverified)}))
    return int(bool(month.faults) or not found.is_clean)


def _live(month: Month, night: Night, auditor: Auditor) -> str:
    """Live through a night; what breaks it is a fault, and the month goes on."""
    try:
        return live(month, night, auditor)
    except (AssertionError, ClozelineError, HTTPError, MlflowException, OSError, psutil.Error) as error:
        month.faults.append(f"night {night.number} ({night.event}) broke off: {error!r}")
        return "broken off"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.month", description=__doc__)
    parser.add_argument("--nights", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0, help="of the events, their moments and the answers to alerts")
    parser.add_argument("--outage-seconds", type=float, default=100, help="for which a server is away")
    parser.add_argument("--folder", type=Path, help="a new folder that is kept afterwards; by default a temporary one")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
