"""Stages run as processes of their own, with the project's params changed where a benchmark says so."""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from ruamel.yaml import YAML

from clozeline.params.pretraining import laid_over
from clozeline.params.reading import read_tree

_LOG = logging.getLogger(__name__)
_POLL_SECONDS = 0.05
_CONTINUING = ("tokenize", "pretrain")
# Stages that may continue from the champion, which no benchmark does.
_FORGETTING = ("snapshot", "preprocess")

PROJECT = Path(__file__).parents[3]
# Folder of files that benchmarks make once and use again; may be removed at any time.
KEPT = PROJECT / "work" / "benchmarks"


@dataclass(frozen=True)
class Usage:
    """Time and peak memory of a stage, including its worker processes."""

    seconds: float
    peak_rss_bytes: int  # peak resident memory, including mapped files, which the kernel may drop at any time
    peak_own_bytes: int  # peak anonymous and shared memory: the memory that the machine must really have


@dataclass(frozen=True)
class Setting:
    """Whose code runs a stage, and where."""

    project: Path = PROJECT  # checkout with the code and params.yaml
    cores: frozenset[int] | None = None  # cores that the processes may use; None: all
    environment: Mapping[str, str] = field(default_factory=dict)


def params_tree(changes: Mapping[str, Any], project: Path = PROJECT) -> dict[str, Any]:
    """params.yaml with its defaults, and `changes` laid over both; the code of another commit has its own defaults."""
    path = project / "params.yaml"
    return laid_over(read_tree(path) if project == PROJECT else YAML(typ="safe").load(path), changes)


def run_stage(
    name: str, folder: Path, changes: Mapping[str, Any], setting: Setting | None = None, **paths: Path
) -> Usage:
    """Run stage `name` in `folder`, as dvc.yaml calls it.

    Raises:
        CalledProcessError: the stage failed; the cause is on stderr.
    """
    folder.mkdir(parents=True, exist_ok=True)
    setting = setting or Setting()
    YAML(typ="safe").dump(params_tree(changes, setting.project), folder / "params.yaml")
    command = [sys.executable, "-m", "clozeline", "stage", name]
    command += [f"{key}={path.resolve()}" for key, path in paths.items()]
    command += ["start=start.lock"] if name in _CONTINUING else []
    command += ["forgotten=forgotten.lock"] if name in _FORGETTING else []
    _LOG.info("stage %s", name)
    started = time.perf_counter()
    environment = {**os.environ, **setting.environment, "PYTHONPATH": str(setting.project / "src")}
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=sys.stderr) as process:
        if setting.cores is not None:
            os.sched_setaffinity(process.pid, setting.cores)  # its processes inherit it
        peak_rss, peak_own = 0, 0
        while process.poll() is None:
            rss, own = _memory_of_tree(process.pid)
            peak_rss, peak_own = max(peak_rss, rss), max(peak_own, own)
            time.sleep(_POLL_SECONDS)
        seconds = time.perf_counter() - started
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Usage(seconds, peak_rss, peak_own)


def _memory_of_tree(pid: int) -> tuple[int, int]:
    """Return resident and own bytes of a process and its descendants; a process that has just ended counts as 0."""
    resident = own = 0
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with suppress(FileNotFoundError, ProcessLookupError):
                lines = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8").splitlines()
                sizes = {line.partition(":")[0]: int(line.split()[1]) for line in lines if line.endswith(" kB")}
                resident += sizes.get("VmRSS", 0) * 1024
                own += (sizes.get("RssAnon", 0) + sizes.get("RssShmem", 0)) * 1024
    return resident, own


def paths_of(stage: str, made: Path, kept: Path) -> dict[str, Path]:
    """Return the paths of a stage: its outputs are in `made`; the snapshot, its metrics and tables in `kept`."""
    tokens = {"tokenizer": made / "tokenizer", "tokens": made / "tokens"}
    tables = {name: kept / f"{name}.csv" for name in ("curve", "validation", "timing")}
    own: dict[str, dict[str, Path]] = {
        "snapshot": {"out": kept / "raw"},
        "preprocess": {"raw": kept / "raw", "out": made / "clean"},
        "tokenize": {"clean": made / "clean", "tokenizer": tokens["tokenizer"], "out": tokens["tokens"]},
        "pretrain": {**tokens, "out": made / "encoder", **tables},
    }
    told = {} if stage == "snapshot" else {"metrics": kept / f"{stage}.json", "work": kept / stage}
    return own[stage] | told
