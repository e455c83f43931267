"""Claim: a sweep and an ablation find the same on a cluster, and a killed sweep repeats no finished trial."""

import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from clozeline.lab.ablation import ablate
from clozeline.lab.experiment import Arm, Corpus
from clozeline.lab.plan import SweepPlan
from clozeline.lab.sweep import Sweep, run_trials
from tests.cluster.raylets import cluster_of_two
from tests.cluster.test_ray_workers import until
from tests.conftest import PROJECT
from tests.lab.test_sweep import unlogged

pytestmark = pytest.mark.slow
RUN = """
import pickle, sys
from pathlib import Path
from clozeline.lab.ablation import ablate
from clozeline.lab.sweep import run_trials
from tests.lab.test_sweep import unlogged

sweep, arms = pickle.loads(Path("told.pickle").read_bytes())
run_trials(sweep, unlogged)
print(ablate(arms, 2, sweep.corpus, sweep.config.checked, sweep.kept))
"""
KEY = "pretrain.optimizer.learning_rate"


def test_two_raylets_train_what_one_process_trains_and_a_killed_sweep_goes_on(config, corpus: Corpus, tmp_path) -> None:
    """The first trial, the params as they are, is also a training of the ablation."""
    plan = {"metric": "best_validation_loss_nats_per_token", "trials": 3, "pruning": False}
    plan["space"] = {KEY: {"low": 1e-4, "high": 1e-2, "log": True}}
    config["pretrain"]["validation"]["every_steps"] = 20
    config["pretrain"]["num_threads"] = 1
    sweep = Sweep(SweepPlan.model_validate(plan), config, corpus, tmp_path / "kept")
    other = config.copy()
    other["pretrain"]["optimizer"]["learning_rate"] = 5e-3
    arms = [Arm(name, of_arm, of_arm.checked) for name, of_arm in {"A": config, "B": other}.items()]
    (tmp_path / "told.pickle").write_bytes(pickle.dumps((sweep, arms)))

    def finished() -> dict[Path, int]:
        names = [trial.experiment for trial in sweep.trials.read() if trial.state == "finished"]
        files = [sweep.kept / name / "result.json" for name in names]
        return {file: file.stat().st_mtime_ns for file in files}

    with cluster_of_two(tmp_path / "raylets.log") as cluster:
        command = [sys.executable, "-c", RUN]
        told = {**os.environ, **cluster.environment, "PYTHONPATH": str(PROJECT)}
        with subprocess.Popen(command, cwd=tmp_path, env=told) as killed:
            until(lambda: bool(finished()) or killed.poll() is not None)
            killed.kill()
        before = finished()
        assert 1 <= len(before) < 3
        done = subprocess.run(command, cwd=tmp_path, env=told, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    after = finished()
    assert len(after) == 3
    assert {file: after[file] for file in before} == before
    alone = replace(sweep, kept=tmp_path / "alone")
    run_trials(alone, unlogged)
    assert sweep.trials.read() == alone.trials.read()
    found = ablate(arms, 2, corpus, config.checked, alone.kept)
    assert str(found.nats_per_byte) in done.stdout
