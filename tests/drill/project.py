"""The project of the drill: real DVC, Prefect and MLflow; its training is a loop of seconds, with checkpoints."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil
from mlflow.tracking import MlflowClient
from ruamel.yaml import YAML

from clozeline.system.workspace import Workspace, run_lock
from clozeline.tracking.outbox import Outbox
from tests.make.processes import wait_for
from tests.make.projects import DVC_YAML, STEPS, make_toy

STAGES = ("upper", "train", "count", "sign@ada", "sign@alan")
TRAIN_YAML = """
  train:
    desc: Trains in steps, with a checkpoint after each
    cmd: python steps.py train upper.txt model.txt
    deps: [upper.txt]
    outs: [model.txt]
"""
TRAIN_STEPS = '''
import hashlib
from clozeline.tracking.run_logger import run_logger

def train(text):
    """60 steps of 0.05 s: each hashes the state of the one before, and continues from the checkpoint."""
    checkpoint = pathlib.Path("work/checkpoint")
    lines = checkpoint.read_text().splitlines() if checkpoint.exists() else [hashlib.sha256(text.encode()).hexdigest()]
    steps = pathlib.Path("work/steps")
    with contextlib.closing(run_logger("pretrain")) as log:
        for step in range(len(lines), STEPS):
            time.sleep(SECONDS)
            lines.append(hashlib.sha256(lines[-1].encode()).hexdigest())
            log.metrics({"loss": 1 / step}, step)
            beside = checkpoint.with_suffix(".new")
            beside.write_text("\\n".join(lines))
            beside.replace(checkpoint)
    checkpoint.unlink(missing_ok=True)
    return lines[-1]
'''


def make_project(folder: Path, *, steps: int = 60, step_seconds: float = 0.05) -> Path:
    """Write the project in `folder`; nothing has run."""
    root = make_toy(folder)
    (root / "dvc.yaml").write_text(DVC_YAML + TRAIN_YAML)
    training = TRAIN_STEPS.replace("STEPS", str(steps)).replace("SECONDS", str(step_seconds))
    code = STEPS.replace("import json, os", "import contextlib, json, os").replace(
        "verb, source", f"{training}\nverb, source", 1
    )
    (root / "steps.py").write_text(code)
    params = YAML().load(root / "params.yaml")
    params["export"]["models"] = {}  # its stages make no model
    YAML().dump(params, root / "params.yaml")
    return root


def environment(root: Path, **others: str) -> dict[str, str]:
    """Return our environment without servers, except `others`; `python` is this one."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "PREFECT_", "DVC_"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**ours, "PATH": path, "PREFECT_HOME": Workspace(root).defaults()["PREFECT_HOME"], **others}


def start(root: Path, *arguments: str, variables: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start `python -m …` in the project, in a process group of its own; its output is in the file `said`."""
    with (root / "work-said").open("ab") as said:
        return subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=root,
            env=environment(root, **(variables or {})),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )


def run_command(root: Path, variables: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    return start(root, "clozeline", "run", "--no-release", variables=variables)


def said(root: Path) -> str:
    return (root / "work-said").read_text(errors="replace")


def processes_in(root: Path) -> list[str]:
    """Return the command lines of the processes whose working directory is `root`, whatever their parent is now."""
    found = []
    for process in psutil.process_iter(["cwd", "status", "cmdline"]):
        if process.info["cwd"] == str(root) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(" ".join(process.info["cmdline"]))
    return found


def wait_for_stage(root: Path, stages: Sequence[str], has_ended: Callable[[], bool], seconds: float = 600) -> None:
    """Wait until a log of one of `stages` is new, or the run has ended: the stages were up to date."""

    def logs() -> set[Path]:
        return {path for name in stages for path in (root / "work/logs").glob(f"*/{name}.log")}

    before = logs()
    wait_for(lambda: bool(logs() - before) or has_ended(), seconds, every_seconds=0.5)


def orphans(root: Path, seconds: float = 60) -> list[str]:
    """Return the processes that are left after `seconds`."""
    wait_for(lambda: not processes_in(root), seconds)
    return processes_in(root)


def digest(root: Path) -> str:
    """Return the hash of every output and of dvc.lock."""
    files = [
        root / "dvc.lock",
        *(root / name for name in ("upper.txt", "model.txt", "metrics/count.json")),
        *sorted((root / "signed").iterdir()),
    ]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def require_clean(root: Path, tracking_uri: str) -> None:
    """Check what a finished run leaves: no open run, no held lock, nothing in the outbox, each curve whole."""
    with run_lock(root / "work/run.lock", wait_seconds=0.5):
        pass
    assert not Outbox(root / "work/outbox").runs(), "MLflow lacks some records"
    in_use = json.loads((root / ".dvc/tmp/rwlock").read_text() or "{}")
    assert not any(in_use.values()), f"DVC's list of the paths in use: {in_use}"
    client = MlflowClient(tracking_uri)
    runs = client.search_runs([known.experiment_id for known in client.search_experiments()])
    assert {run.info.status for run in runs} <= {"FINISHED", "KILLED", "FAILED"}, [run.info.status for run in runs]
    trained = [run for run in runs if run.data.tags.get("dvc.stage") == "train" and run.info.status == "FINISHED"]
    assert trained
    for run in trained:
        steps = [point.step for point in client.get_metric_history(run.info.run_id, "loss")]
        assert steps == sorted(set(steps)), "a step occurs twice"
        assert len(steps) == steps[-1], f"{steps[-1] - len(steps)} steps are lost"


def copy_of(root: Path, folder: Path) -> Path:
    """Return a copy of the project whose site cache is its own."""
    copied = shutil.copytree(root, folder / root.name)
    config = f"[core]\n    no_scm = true\n    site_cache_dir = {folder / 'site'}\n"
    (copied / ".dvc/config").write_text(config)
    return copied
