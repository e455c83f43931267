"""Claim: a sweep and an ablation find the same on a cluster, and a killed sweep repeats no finished trial."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from clozeline.lab.ablation import ablate
from clozeline.lab.experiment import Arm, Corpus
from clozeline.lab.plan import SweepPlan
from clozeline.lab.sweep import Sweep, run_trials
from clozeline.params.editing import Config
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


@pytest.fixture
def sweep(config: Config, corpus: Corpus, tmp_path: Path) -> Sweep:
    plan = {"metric": "best_validation_loss_nats_per_token", "trials": 4, "pruning": False}
    plan["space"] = {KEY: {"low": 1e-4, "high": 1e-2, "log": True}}
    config["pretrain"]["validation"]["every_steps"] = 20
    config["pretrain"]["num_threads"] = 1
    return Sweep(SweepPlan.model_validate(plan), config, corpus, tmp_path / "kept")


def test_two_raylets_train_what_one_process_trains_and_a_killed_sweep_goes_on(sweep: Sweep, tmp_path: Path) -> None:
    def finished() -> dict[Path, int]:
        names = [trial.experiment for trial in sweep.trials.read() if trial.state == "finished"]
        files = [sweep.kept / name / "result.json" for name in names]
        return {file: file.stat().st_mtime_ns for file in files}

    other = sweep.config.copy()
    other["pretrain"]["optimizer"]["learning_rate"] = 5e-3
    arms = [Arm(name, config, config.checked) for name, config in {"A": sweep.config, "B": other}.items()]
    (tmp_path / "told.pickle").write_bytes(pickle.dumps((sweep, arms)))
    with cluster_of_two(tmp_path / "raylets.log") as cluster:
        command = [sys.executable, "-c", RUN]
        told = {**os.environ, **cluster.environment, "PYTHONPATH": str(PROJECT)}
        with subprocess.Popen(command, cwd=tmp_path, env=told) as killed:
            until(lambda: len(finished()) == 2 or killed.poll() is not None)
            killed.kill()
        before = finished()
        assert 2 <= len(before) < 4
        done = subprocess.run(command, cwd=tmp_path, env=told, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    after = finished()
    assert {file: after[file] for file in before} == before
    alone = Sweep(sweep.plan, sweep.config, sweep.corpus, tmp_path / "alone")
    run_trials(alone, unlogged)
    assert sweep.trials.read() == alone.trials.read()
    assert len(after) == 4
    found = ablate(arms, 2, sweep.corpus, sweep.config.checked, alone.kept)
    assert str(found.nats_per_byte) in done.stdout
