"""What happens in the nights of the month: each event as steps before, during and after the run."""

import contextlib
import json
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, get_args

import httpx
import psutil

from tests.drill.project import said, wait_for_stage
from tests.make.processes import answers, wait_for
from tests.make.projects import toy_language
from tests.make.servers import held_ports
from tests.month.installation import Installation
from tests.month.scenario import STAGES, Event, Night

_DAY_HOURS: Final = 24
# Less than one checkpoint of the tiny model.
_SMALL_DISK_BYTES: Final = 64 * 1024
_NUM_QUESTIONS: Final = 60
_ACTIVE: Final = frozenset({"SCHEDULED", "PENDING", "RUNNING"})


@dataclass
class Month:
    """What the players share, and what they did."""

    installation: Installation
    outage_seconds: float
    kills: Counter[str] = field(default_factory=Counter)
    outages: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    is_remote_current: bool = False  # whether the last night pushed everything that it made


Step = Callable[[Month, Night], None]


@dataclass(frozen=True)
class Player:
    """Steps of one event."""

    before: Step = lambda month, night: None  # before the feed delivers the text of the night
    during: Step = lambda month, night: None  # from the start of the run on; returns when the event is over
    after: Step = lambda month, night: None  # when the run has ended


def _at_the_moment(month: Month, night: Night) -> bool:
    """Wait for the moment of the event; return whether the run is still active."""
    stages = STAGES[STAGES.index(night.stage) :]
    wait_for_stage(month.installation.root, stages, lambda: _has_ended(month), seconds=1800)
    time.sleep(night.delay_seconds)
    return not _has_ended(month)


def _has_ended(month: Month) -> bool:
    states = {run["state"]["type"] for run in month.installation.prefect.runs()}
    return not states & _ACTIVE


def _kill_worker(month: Month, night: Night) -> None:
    if _at_the_moment(month, night):
        month.installation.prefect.kill_worker_and_flow()
        month.kills["worker and flow"] += 1
        month.installation.prefect.start_worker()


def _kill_stage(month: Month, night: Night) -> None:
    """Kill the stage, or the next one if it has just ended."""
    _at_the_moment(month, night)
    while not (_killed_stage(month) or _has_ended(month)):
        time.sleep(0.1)


def _killed_stage(month: Month) -> bool:
    for process in psutil.process_iter(["cwd", "cmdline"]):
        if process.info["cwd"] == str(month.installation.root) and "stage" in (process.info["cmdline"] or ()):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
                month.kills["stage"] += 1
                return True
    return False


def _stop_mlflow(month: Month, night: Night) -> None:
    _at_the_moment(month, night)
    month.installation.mlflow.stop()
    month.outages["MLflow"] += 1
    time.sleep(month.outage_seconds)
    month.installation.mlflow.start()


def _stop_prefect(month: Month, night: Night) -> None:
    _at_the_moment(month, night)
    month.installation.prefect.kill("server")
    month.outages["Prefect"] += 1
    time.sleep(month.outage_seconds)
    month.installation.prefect.start_server()


def _close_store(month: Month, night: Night) -> None:
    """Let the store refuse every write after the next few, in the middle of the push."""
    _at_the_moment(month, night)
    month.installation.store.num_writes_left = round(10 * night.delay_seconds)
    month.outages["store"] += 1


def _open_store(month: Month, night: Night) -> None:
    month.installation.store.num_writes_left = None


def _fill_disk(month: Month, night: Night) -> None:
    """Put the checkpoints on a disk that is smaller than one of them: a mount that only the worker sees."""
    folder = month.installation.root / "work" / "pretrain"
    folder.mkdir(parents=True, exist_ok=True)
    small = ["--size", str(_SMALL_DISK_BYTES), "--tmpfs", str(folder)]
    _free_disk(month, night, ["bwrap", "--dev-bind", "/", "/", *small, "--"])


def _free_disk(month: Month, night: Night, inside: Sequence[str] = ()) -> None:
    month.installation.prefect.kill("worker")
    month.installation.prefect.start_worker(inside)


def _clone(month: Month, night: Night) -> None:
    """Copy what git would hold of the project, with the text of the last night."""
    kept = shutil.ignore_patterns("work*", "data", "models", "dist", "metrics", "plots", "reports", "cache", "tmp")
    clone = shutil.copytree(month.installation.root, _clone_of(month, night), ignore=kept)
    (clone / ".dvc" / "config.local").write_text(f"[core]\n    site_cache_dir = {clone.parent / 'site'}\n")


def _clone_of(month: Month, night: Night) -> Path:
    return month.installation.folder / f"colleague-{night.number}" / "project"


def _run_of_colleague(month: Month, night: Night) -> None:
    """Let a colleague run the text of the last night during this one: every stage is restored from the remote."""
    clone = _clone_of(month, night)
    ended = month.installation.start("clozeline", "run", "--no-release", root=clone).wait()
    if month.is_remote_current and (ended or "executed" in said(clone)):
        told = said(clone)[-3000:]
        month.faults.append(f"night {night.number}: the colleague's stages were not all restored:\n{told}")


def _sweep(month: Month, night: Night) -> None:
    """Two days later, sweep what is no longer needed; the first sweep is killed, and the second goes on."""
    installation = month.installation
    installation.store.age(2 * _DAY_HOURS)
    earlier = time.time() - 2 * _DAY_HOURS * 3600
    cache = installation.root / ".dvc" / "cache"
    for path in cache.rglob("*"):
        os.utime(path, (earlier, earlier))
    command = ("clozeline", "gc", "--nights", "3", "--min-age-hours", "1", "--shared", "--yes")
    process = installation.start(*command)
    before = len(list(cache.rglob("*")))
    wait_for(lambda: len(list(cache.rglob("*"))) < before or process.poll() is not None, 1800)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        month.kills["gc"] += 1
    process.wait()
    installation.run(*command)


def _drift(month: Month, night: Night) -> None:
    """Serve the champion, ask it about other texts than before, and let the scheduled comparison see it."""
    installation = month.installation
    normal = [record["text"] for record in toy_language(_NUM_QUESTIONS)]
    chance = random.Random(night.number)
    strange = ["".join(chance.choices("qxyjw", k=3)) for _ in range(_NUM_QUESTIONS)]
    with held_ports() as free_port:
        port = free_port()
        server = installation.start("clozeline", "serve", "models:/clozeline-encoder@champion", "--port", str(port))
        try:
            url = f"http://127.0.0.1:{port}"
            assert wait_for(lambda: answers(f"{url}/health/ready"), 600), "the server does not start"
            states = []
            for texts in (normal, normal, strange):
                for text in texts:
                    httpx.post(f"{url}/fill-mask", json={"inputs": f"{text} [MASK]"}, timeout=60).raise_for_status()
                run = installation.prefect.begin("drift", url=url, limits={"min_texts": _NUM_QUESTIONS})
                wait_for(lambda run=run: installation.prefect.state(run) not in _ACTIVE, 900, every_seconds=1)
                states.append(installation.prefect.state(run))
        finally:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
    if states != ["COMPLETED", "COMPLETED", "FAILED"]:
        month.faults.append(f"night {night.number}: the runs of `drift` ended {states}")

    def is_retraining() -> bool:
        """Return whether an automation started a run for another reason than a crash."""
        return any("clozeline-retrain" in json.dumps(run["created_by"]) for run in installation.prefect.runs())

    if not wait_for(is_retraining, 120, every_seconds=1):
        month.faults.append(f"night {night.number}: drift started no retraining")
    installation.wait_until_quiet()


# Steps of each event, beside the feed and the params of the night, which are in scenario.py.
PLAYERS: Final[Mapping[Event, Player]] = {
    **dict.fromkeys(get_args(Event), Player()),
    "worker killed": Player(during=_kill_worker),
    "stage killed": Player(during=_kill_stage),
    "MLflow away": Player(during=_stop_mlflow),
    "Prefect away": Player(during=_stop_prefect),
    "store away": Player(during=_close_store, after=_open_store),
    "disk full": Player(before=_fill_disk, after=_free_disk),
    "drift": Player(before=_drift),
    "colleague": Player(before=_clone, during=_run_of_colleague),
    "gc": Player(before=_sweep),
}
