"""Claim: stages, commands, trainings and trials give on a cluster what they give here, also if a node is killed.

All tests share two raylets on loopback. One that kills the second node leaves it to the next one to start another; the
last one kills the head.
"""

import hashlib
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file

from clozeline.cluster.store import SharedStore
from clozeline.lab.ablation import ablate
from clozeline.lab.experiment import Arm, Corpus
from clozeline.lab.plan import SweepPlan
from clozeline.lab.sweep import Sweep, run_trials
from clozeline.params.editing import Config
from clozeline.params.pretraining import PretrainParams
from clozeline.params.text import PreprocessParams, TokenizeParams
from clozeline.stages import preprocess, tokenize
from clozeline.system.errors import TransientError
from tests.cli.test_stage import start
from tests.cluster.raylets import Cluster, cluster_of_two, kill_raylet
from tests.cluster.test_store import Apart
from tests.conftest import PROJECT
from tests.corpus.conftest import params_of
from tests.lab.conftest import config, corpus
from tests.lab.test_sweep import unlogged
from tests.make.processes import is_alive, wait_for
from tests.make.stores import BUCKET, KEYS, ObjectStore
from tests.make.texts import take_snapshot, write_clean_text
from tests.records.words.conftest import words
from tests.stages.test_pretrain import project_with
from tests.training.prepared import changed

pytestmark = pytest.mark.slow
__all__ = ["config", "corpus", "params_of", "words"]


@pytest.fixture(scope="module")
def raylets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes, which reach an empty store of objects."""
    temporary = tmp_path_factory.mktemp("temporary")
    with ObjectStore().serving() as store:
        reached = {**KEYS, "AWS_ENDPOINT_URL": store.url, "TMPDIR": str(temporary)}
        with cluster_of_two(tmp_path_factory.mktemp("raylets") / "log", variables=reached) as cluster:
            yield cluster


@pytest.fixture
def cluster(raylets: Cluster) -> Cluster:
    raylets.revive()
    return raylets


def python(cluster: Cluster, folder: Path, code: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Start code that works on the cluster."""
    told = {**os.environ, **cluster.environment, **variables}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, cwd=folder, env=told, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


SEND = """
import logging, os, sys
from pathlib import Path
from clozeline.cluster.ray_jobs import StoppedError, run_jobs
from clozeline.system.errors import TransientError

class KillOnRetry(logging.Handler):
    def emit(self, record):
        if os.environ.get("KILL_ON_RETRY") and "its node ended" in record.getMessage():
            os.kill(int(os.environ["KILL_ON_RETRY"]), 9)

logging.basicConfig(level=logging.INFO)
logging.getLogger("clozeline").addHandler(KillOnRetry())
commands = [[sys.executable, "-c", sys.argv[2], name] for name in sys.argv[3:] or [""]]
environment = {**os.environ, "NAME": "ours", "HOME": "/of-the-sender"}
try:
    ended = run_jobs(sys.argv[1], Path("work"), commands, environment, sys.stdout.buffer.write)
except StoppedError as stopped:
    sys.exit(128 + stopped.number)
except TransientError as error:
    print(error, flush=True)
    sys.exit(error.exit_code)
sys.exit(max(one.exit_code for one in ended))
"""
STAY = """
import os, subprocess, sys, time
helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
with open(sys.argv[1] + ".new", "w") as file:
    file.write(f"{os.getpid()} {helper.pid}")
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(600)
"""
ONCE_MORE = f"""
import os, sys
print(os.environ["NAME"], os.environ["HOME"], os.getcwd(), os.environ["CLOZELINE_CORES"], flush=True)
if not os.path.exists("begun"):
    sys.argv = ["", "begun"]
    exec({STAY!r})
print("the second attempt", file=sys.stderr)
sys.exit(75)
"""


def send(cluster: Cluster, folder: Path, *command: str, **variables: str) -> subprocess.Popen[str]:
    return python(cluster, folder, SEND, cluster.address, *command, **variables)


def pids_in(file: Path) -> list[int]:
    assert wait_for(file.exists, 300)
    return [int(pid) for pid in file.read_text().split()]


def test_commands_run_side_by_side_and_end_with_their_sender(cluster: Cluster, tmp_path: Path) -> None:
    numbers = {"one": signal.SIGTERM, "other": signal.SIGKILL}
    senders = [send(cluster, tmp_path, STAY, name) for name in numbers]
    pids = [pids_in(tmp_path / name) for name in numbers]
    nodes = {cluster.node_of(command).pid for command, _ in pids}
    for sender, number in zip(senders, numbers.values(), strict=True):
        sender.send_signal(number)
    outputs = [sender.communicate() for sender in senders]
    assert len(nodes) == 2, "one command on each node"
    assert wait_for(lambda: not any(map(is_alive, [*pids[0], *pids[1]])), 120), outputs
    assert [sender.returncode for sender in senders] == [128 + signal.SIGTERM, -signal.SIGKILL]


BY_STORE = """
import json
from pathlib import Path
from clozeline.cluster.ledger import open_workers
from clozeline.cluster.ledger import Ledger
from tests.cluster.test_store import doubled

with open_workers(Path("work")) as workers:
    ledger = Ledger(Path("work/numbers"), "code", workers)
    (six,) = ledger.run([doubled(Path("three.txt"))], read=())
    (twelve,) = ledger.run([doubled(six.folder / "number.txt")])
print(json.dumps([six.facts, twelve.facts, (twelve.folder / "number.txt").read_text()]))
"""


def test_nodes_with_a_store_work_outside_the_folder_of_the_project(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "three.txt").write_text("3")
    by_store = python(cluster, tmp_path, BY_STORE, CLOZELINE_CLUSTER_STORE=f"s3://{BUCKET}/project")
    said, log = by_store.communicate()
    assert by_store.returncode == 0, log
    six, twelve, content = json.loads(said.splitlines()[-1])
    assert (six["number"], twelve["number"], content) == (6, 12, "12")
    assert six["ran in"].startswith("clozeline-store-")
    fetched = Path(cluster.environment["TMPDIR"]).glob("clozeline-store-*")
    assert not list(fetched), "fetched files are removed at the end"
    assert {file.name for file in tmp_path.rglob("*") if file.is_file()} == {"three.txt", "number.txt", "record.json"}


GANG = """
import os, signal, sys, threading, time
from pathlib import Path
from clozeline.cluster.ray_jobs import GangSize, placed_gang
from clozeline.system.errors import ClusterError

def run(code, num_nodes=2):
    with placed_gang(sys.argv[1], Path.cwd(), GangSize(num_nodes, num_nodes, 1)) as gang:
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
LASTS = "import os, time; open(f'running-{os.getpid()}', 'w').close(); time.sleep(200)"
try:
    run(FAILS, num_nodes=3)
except ClusterError as error:
    print(error, file=sys.stderr)
print(run(FAILS), flush=True)
threading.Thread(target=stop, daemon=True).start()
print(run(LASTS), flush=True)
"""


def test_a_gang_needs_its_nodes_and_ends_as_one(cluster: Cluster, tmp_path: Path) -> None:
    said, log = python(cluster, tmp_path, GANG, cluster.address).communicate()
    assert said.split("\n") == ["told to all", "7", "143", ""], log
    assert "the cluster has too few nodes" in log
    assert log.count(": 1 CPUs") == 2
    assert not any(psutil.pid_exists(int(path.name.split("-")[1])) for path in tmp_path.glob("running-*"))


TRIALS = """
import pickle, sys
from pathlib import Path
from clozeline.lab.ablation import ablate
from clozeline.lab.sweep import run_trials
from tests.lab.test_sweep import unlogged

sweep, arms = pickle.loads(Path("told.pickle").read_bytes())
run_trials(sweep, unlogged)
print(ablate(arms, 2, sweep.corpus, sweep.config.checked, sweep.kept))
"""


def test_a_sweep_and_an_ablation_find_the_same_and_a_killed_sweep_repeats_no_finished_trial(
    cluster: Cluster, config: Config, corpus: Corpus, tmp_path: Path
) -> None:
    """The first trial, the params as they are, is also a training of the ablation."""
    space = {"pretrain.optimizer.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}
    plan = {"metric": "best_validation_loss_nats_per_token", "trials": 3, "pruning": False, "space": space}
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

    with python(cluster, tmp_path, TRIALS) as killed:
        assert wait_for(lambda: bool(finished()) or killed.poll() is not None, 300)
        killed.kill()
    before = finished()
    assert 1 <= len(before) < 3
    said, log = python(cluster, tmp_path, TRIALS).communicate()
    after = finished()
    assert len(after) == 3, log
    assert {file: after[file] for file in before} == before
    alone = replace(sweep, kept=tmp_path / "alone")
    run_trials(alone, unlogged)
    assert sweep.trials.read() == alone.trials.read()
    assert str(ablate(arms, 2, corpus, config.checked, alone.kept).nats_per_byte) in said


STAGES = """
import logging, sys
from pathlib import Path
from clozeline.cluster.ledger import open_workers
from clozeline.system.errors import ClusterError
from clozeline.params.text import PreprocessParams, TokenizeParams
from clozeline.corpus.cleaning import portions
from clozeline.tokenizing import shards
from tests.cluster.raylets import full_at_two
from tests.cluster.test_ray import run_stages

logging.basicConfig(level=logging.WARNING)
portions._PORTION_BYTES, shards._PARTITION_BYTES = 200_000, 100_000
try:
    with open_workers(Path("on cluster")) as workers:
        for number in workers.map(full_at_two, range(9)):
            print(number)
except ClusterError as error:
    print(error, flush=True)
run_stages(PreprocessParams.model_validate_json(sys.argv[1]), Path("on cluster"))
"""
TOKENIZE = TokenizeParams(
    algorithm="wordpiece", existing=None, vocab_size=500, min_frequency=2, lowercase=True, shard_tokens=50_000
)


def run_stages(params: PreprocessParams, made: Path) -> None:
    """Clean the snapshot, and encode the text in groups, into the folder."""
    raw, forgotten = Path("raw"), Path("forgotten.lock")
    read = {"raw": raw, "forgotten": forgotten, "work": made / "work/preprocess", "metrics": made / "clean.json"}
    preprocess.run(params, seed=1, out=made / "clean", **read)
    tokens = {"tokenizer": made / "tokenizer", "out": made / "tokens", "metrics": made / "tokens.json"}
    tokenize.run(TOKENIZE, clean=Path("groups"), work=made / "work/tokenize", **tokens)


def digests(made: Path) -> dict[str, str]:
    files = [file for file in made.rglob("*") if file.is_file() and "work" not in file.relative_to(made).parts]
    return {str(file.relative_to(made)): hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(files)}


def num_records(folder: Path) -> int:
    return len(list(folder.glob("**/record.json")))


def test_stages_give_the_bytes_of_one_process_on_raylets_and_on_nodes_that_share_nothing_but_a_store(
    cluster: Cluster, tmp_path: Path, params_of, words, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the raylets is killed meanwhile."""
    monkeypatch.chdir(tmp_path)
    texts = [words(seed, 60) for seed in range(2_000)]
    texts += [f"{text} and an end" for text in texts[:200]]
    Path("texts.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    params: PreprocessParams = params_of(path="texts.jsonl")
    take_snapshot(params.source, tmp_path / "texts.jsonl", tmp_path / "raw")
    Path("forgotten.lock").write_bytes((PROJECT / "forgotten.lock").read_bytes())
    Path("groups").mkdir()
    for split, some in {"train": texts[100:], "validation": texts[:100]}.items():
        write_clean_text(tmp_path / "groups" / f"{split}.parquet", some, row_group=100)
    stages = python(cluster, tmp_path, STAGES, params.model_dump_json())
    monkeypatch.setattr("clozeline.cluster.ledger.available_cores", lambda: 1)
    run_stages(params, tmp_path / "alone")
    assert wait_for(lambda: num_records(tmp_path / "on cluster") >= 10 or stages.poll() is not None, 300)
    kill_raylet(cluster.nodes[1])
    said, log = stages.communicate()
    assert stages.returncode == 0, log
    assert digests(tmp_path / "on cluster") == digests(tmp_path / "alone")
    assert num_records(tmp_path / "on cluster/work/tokenize") > 5, "several partitions, each encoded by a task"

    @contextmanager
    def apart(work: Path, num_processes: int | None = None) -> Iterator[Apart]:
        yield Apart(SharedStore(f"file://{tmp_path}/store"), tmp_path / "node-1", tmp_path / "node-2")

    monkeypatch.setattr("clozeline.corpus.cleaning.portions._PORTION_BYTES", 200_000)
    monkeypatch.setattr("clozeline.tokenizing.shards._PARTITION_BYTES", 100_000)
    for stage in (preprocess, tokenize):
        monkeypatch.setattr(stage, "open_workers", apart)
    run_stages(params, Path("apart"))
    assert digests(tmp_path / "apart") == digests(tmp_path / "alone")
    assert num_records(tmp_path / "store") > 10
    numbers, _, message = said.partition("full_at_two of item 2 failed 4 times")
    assert numbers.split() == ["0", "1"]
    assert "No space left on device" in message
    assert len(set(re.findall(r"on node (\S+ \(\w+\)):", message))) == 2, "both nodes were tried"


def test_nodes_of_a_training_that_ray_places_train_like_one_process_also_if_one_dies(
    cluster: Cluster, tiny_pretraining: PretrainParams, tiny_tokens: Path, tiny_tokenizer: Path, tmp_path: Path
) -> None:
    """A node that is silent for 6 s counts as dead (by default 15 s); the others wait 20 s more (by default 30 s)."""
    elastic = "--nnodes 1:2 --rdzv-conf last_call_timeout=20,keep_alive_interval=2"
    params = changed(
        tiny_pretraining, steps=300, log_every_steps=3, checkpoint_every_steps=10, optimizer__learning_rate=3e-5
    )
    one, gang = (project_with(params, tmp_path / name) for name in ("one", "gang"))
    alone = start(one, tiny_tokens, tiny_tokenizer, "")
    training = start(gang, tiny_tokens, tiny_tokenizer, elastic, **cluster.environment)
    assert wait_for(lambda: bool(list((gang / "work").glob("*/step-*"))) or training.poll() is not None, 300)
    kill_raylet(cluster.nodes[1])
    try:
        _, said = training.communicate(timeout=600)
    finally:
        training.terminate()
    assert training.returncode == 0, said
    _, said_alone = alone.communicate()
    assert alone.returncode == 0, said_alone
    figures = json.loads((gang / "metrics.json").read_text(encoding="utf-8"))
    assert (figures["world_size_at_start"], figures["world_size_at_end"]) == (2, 1), said
    alike, expected = (load_file(folder / "encoder" / "model.safetensors") for folder in (gang, one))
    assert max((alike[name] - expected[name]).abs().max().item() for name in expected) < 1e-5


def test_a_command_whose_node_dies_runs_on_another_as_it_would_here(cluster: Cluster, tmp_path: Path) -> None:
    with_head, beside = [send(cluster, tmp_path, STAY, name) for name in ("one", "other")]
    if cluster.node_of(pids_in(tmp_path / "one")[0]) != cluster.nodes[0]:
        with_head, beside = beside, with_head
    pids_in(tmp_path / "other")
    beside.terminate()  # now there is room on the second node alone
    beside.communicate()
    sender = send(cluster, tmp_path, ONCE_MORE)
    command, helper = pids_in(tmp_path / "begun")
    with_head.terminate()
    with_head.communicate()
    kill_raylet(cluster.nodes[1])
    output, log = sender.communicate()
    assert sender.returncode == 75, log
    ours = [line for line in output.splitlines() if line.startswith(("ours ", "the second "))]  # Ray reports the death
    assert ours == [f"ours {os.environ['HOME']} {tmp_path} 1"] * 2 + ["the second attempt"]
    assert not is_alive(command)
    assert not is_alive(helper)
    assert "its node ended (attempt 1 of 4)" in log


def test_a_head_that_dies_while_a_command_is_started_again_ends_it_within_seconds(
    cluster: Cluster, tmp_path: Path
) -> None:
    (head,) = (one for one in cluster.nodes[0].children(recursive=True) if one.name() == "gcs_server")
    sender = send(cluster, tmp_path, STAY, "begun", KILL_ON_RETRY=str(head.pid))
    command, _ = pids_in(tmp_path / "begun")
    (its_process,) = (one for one in psutil.Process(command).parents() if one.name().startswith("ray::Agent"))
    its_process.kill()
    assert wait_for(lambda: not head.is_running(), 120)
    head_died = time.monotonic()
    output, log = sender.communicate()
    assert sender.returncode == TransientError.exit_code, log
    assert time.monotonic() - head_died < 50  # Ray itself ends a process a minute after its head
    assert "the cluster is gone" in output
    assert "start the cluster, then repeat the command" in output
