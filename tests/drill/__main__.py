"""`python -m tests.drill --rounds N`: kills and outages; the last line is JSON, and the exit code 0 if all survived."""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.drill.cluster import drill_cluster
from tests.drill.kills import Tally, drill_mlflow, drill_prefect, drill_pushes, drill_runs


def drill_releases(tally: Tally) -> None:
    """Kill the release after its n-th write for every n, with real packages and a real registry."""
    killed = ["tests/registry/test_versions.py", "-k", "killed"]
    subprocess.run([sys.executable, "-m", "pytest", "-n0", "-q", *killed], check=True)
    tally.kills["release, after every write"] += 1
    tally.add_round([])


def main() -> int:
    given, tally = _arguments(), Tally()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve()
        rounds, seed, seconds = given.rounds, given.seed, given.outage_seconds
        attempt("runs", tally, drill_runs, folder / "runs", rounds, seed)
        attempt("pushes", tally, drill_pushes, folder / "pushes", max(rounds // 2, 1), seed)
        several = max(rounds // 4, 1)
        attempt("kills of a cluster", tally, drill_cluster, folder / "cluster", several, seed, given.cluster_megabytes)
        attempt("an outage of MLflow", tally, drill_mlflow, folder / "mlflow", seconds)
        attempt("outages of Prefect's server and worker", tally, drill_prefect, folder / "prefect", seconds)
        attempt("release", tally, drill_releases)
    sys.stdout.writelines(f"{number:4} x {place}\n" for place, number in sorted(tally.kills.items()))
    sys.stdout.writelines(f"fault: {fault}\n" for fault in tally.faults)
    sys.stdout.write(json.dumps(tally.counts) + "\n")
    return int(not tally.all_survived)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.drill", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="kills of runs; of pushes half, of clusters a quarter")
    parser.add_argument("--cluster-megabytes", type=int, default=64, help="text that two raylets prepare")
    parser.add_argument("--seed", type=int, default=1, help="of the moments and the ways")
    parser.add_argument("--outage-seconds", type=float, default=600, help="for which each server is away")
    return parser.parse_args()


def attempt(what: str, tally: Tally, part: Callable[..., None], *given: Any) -> None:
    """Run a part of the drill. One that cannot go on is a round that was not survived; the other parts still run."""
    try:
        part(*given, tally)
    except Exception as error:  # noqa: BLE001  # a server or a process that does not do its part raises anything
        tally.rounds += 1
        tally.faults.append(f"{what}: {type(error).__name__}: {error}")
    sys.stdout.write(f"{what}: {tally.survived} of {tally.rounds} rounds survived so far\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
