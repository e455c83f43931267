"""Claim: one command trains on the nodes that Ray places, also if one of them dies, to 1e-5 of one process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file

from clozeline.params.pretraining import PretrainParams
from tests.cli.test_stage import start
from tests.cluster.raylets import cluster_of_two, kill_raylet
from tests.cluster.test_ray_workers import until
from tests.stages.test_pretrain import project_with
from tests.training.prepared import changed

pytestmark = pytest.mark.slow
# A node that is silent for 6 s counts as dead (by default 15 s), and the others wait 20 s more (by default 30 s).
ELASTIC = "--nnodes 1:2 --rdzv-conf last_call_timeout=20,keep_alive_interval=2"
GANG = """
import os, signal, sys, threading, time
from pathlib import Path
from clozeline.cluster import ray_jobs
from clozeline.cluster.ray_jobs import GangSize, placed_gang

class SilentOnce(ray_jobs.Agent):
    def __init__(self, command, folder, *others):
        try:
            Path(folder, "silent").mkdir()
        except FileExistsError:
            super().__init__(command, folder, *others)
        else:
            time.sleep(600)

def run(code):
    with placed_gang(sys.argv[1], Path.cwd(), GangSize(2, 2, 1)) as gang:
        return gang.run([sys.executable, "-c", code], {"OF_ALL": "told to all"}, sys.stdout.buffer.write)

def stop():
    while len(list(Path().glob("running-*"))) < 2:
        time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGTERM)

FAILS = '''
import os, sys
try:
    os.mkdir("first")
except FileExistsError:
    sys.exit(1)
print(os.environ["OF_ALL"], flush=True)
sys.exit(7)
'''
BOTH = '''
import os, time
from pathlib import Path
Path(f"both-{os.getpid()}").touch()
while len(list(Path().glob("both-*"))) < 2:
    time.sleep(0.1)
os.write(1, b"bo")
time.sleep(1.0)
print("th", flush=True)
'''
LASTS = "import os, time; open(f'running-{os.getpid()}', 'w').close(); time.sleep(200)"
print(run(FAILS), flush=True)
threading.Thread(target=stop, daemon=True).start()
print(run(LASTS), flush=True)
ray_jobs.Agent, ray_jobs._AGENT_ANSWERS_WITHIN_SECONDS = SilentOnce, 20.0
print(run(BOTH), flush=True)
"""


def test_nodes_that_ray_places_train_like_one_process_also_if_one_dies(
    tiny_pretraining: PretrainParams, tiny_tokens: Path, tiny_tokenizer: Path, tmp_path: Path
) -> None:
    params = changed(
        tiny_pretraining, steps=300, log_every_steps=3, checkpoint_every_steps=10, optimizer__learning_rate=3e-5
    )
    one, gang = (project_with(params, tmp_path / name) for name in ("one", "gang"))
    alone = start(one, tiny_tokens, tiny_tokenizer, "")
    with cluster_of_two(tmp_path / "raylets.log") as cluster:
        _, said_alone = alone.communicate()
        assert alone.returncode == 0, said_alone
        three = start(gang, tiny_tokens, tiny_tokenizer, "--nnodes 3", **cluster.environment)
        _, refused = three.communicate()
        assert three.returncode == 9, refused
        assert "the cluster has too few nodes" in refused
        assert refused.count(": 1 CPUs") == 2

        toys = subprocess.run(
            [sys.executable, "-c", GANG, cluster.address],
            cwd=tmp_path, env={**os.environ, **cluster.environment}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert toys.stdout.split("\n") == ["told to all", "7", "143", "both", "both", "0", ""], toys.stderr
        assert "of 2: no answer within 20 s; it is started again" in toys.stderr
        assert not any(psutil.pid_exists(int(path.name.split("-")[1])) for path in tmp_path.glob("running-*"))

        training = start(gang, tiny_tokens, tiny_tokenizer, ELASTIC, **cluster.environment)
        until(lambda: bool(list((gang / "work").glob("*/step-*"))) or training.poll() is not None)
        kill_raylet(cluster.nodes[1])
        try:
            _, said = training.communicate(timeout=600)
        finally:
            training.terminate()
        assert training.returncode == 0, said
    figures = json.loads((gang / "metrics.json").read_text(encoding="utf-8"))
    assert (figures["world_size_at_start"], figures["world_size_at_end"]) == (2, 1), said
    alike, expected = (load_file(folder / "encoder" / "model.safetensors") for folder in (gang, one))
    assert max((alike[name] - expected[name]).abs().max().item() for name in expected) < 1e-5
