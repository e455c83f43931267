"""Claim: a command runs on a node as it would here, ends with the process that sent it, and survives its node."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from clozeline.system.errors import TransientError
from tests.cluster.raylets import Cluster, cluster_of_two, kill_raylet
from tests.make.processes import is_alive, wait_for

pytestmark = pytest.mark.slow
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
SAY = """
import os, sys, time
os.close(os.open(sys.argv[1], os.O_CREAT))
while not (os.path.exists("one") and os.path.exists("other")):
    time.sleep(0.1)
for _ in range(200):
    os.write(1, sys.argv[1].encode())
    os.write(1, b" says so\\n")
os.write(1, b"end of " + sys.argv[1].encode())
sys.exit(3 if sys.argv[1] == "one" else 0)
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


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster_of_two(tmp_path_factory.mktemp("raylets") / "log") as cluster:
        yield cluster


def send(cluster: Cluster, folder: Path, *command: str, **variables: str) -> subprocess.Popen[str]:
    told = {**os.environ, **cluster.environment, **variables}
    sender = [sys.executable, "-c", SEND, cluster.address, *command]
    return subprocess.Popen(sender, cwd=folder, env=told, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def pids_in(file: Path) -> list[int]:
    assert wait_for(file.exists, 300)
    return [int(pid) for pid in file.read_text().split()]


def head_of(cluster: Cluster) -> psutil.Process:
    (found,) = (one for one in cluster.nodes[0].children(recursive=True) if one.name() == "gcs_server")
    return found


def end(sender: subprocess.Popen[str]) -> None:
    sender.terminate()
    sender.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_commands_run_side_by_side_and_end_with_their_sender(
    cluster: Cluster, tmp_path: Path, number: signal.Signals
) -> None:
    senders = [send(cluster, tmp_path, STAY, name) for name in ("one", "other")]
    pids = [pids_in(tmp_path / name) for name in ("one", "other")]
    nodes = {cluster.node_of(command).pid for command, _ in pids}
    for sender in senders:
        sender.send_signal(number)
    outputs = [sender.communicate() for sender in senders]
    assert len(nodes) == 2, "one command on each node"
    assert wait_for(lambda: not any(map(is_alive, [*pids[0], *pids[1]])), 120), outputs
    assert [sender.returncode for sender in senders] == [128 + number if number == signal.SIGTERM else -number] * 2


def test_commands_of_one_sender_run_side_by_side_and_their_lines_do_not_mix(cluster: Cluster, tmp_path: Path) -> None:
    sender = send(cluster, tmp_path, SAY, "one", "other")
    output, log = sender.communicate()
    assert sender.returncode == 3, log
    said = Counter(output.splitlines())
    assert {line: said[line] for line in said if line.endswith(("so", "one", "other"))} == {
        "one says so": 200,
        "other says so": 200,
        "end of one": 1,
        "end of other": 1,
    }


def test_a_command_whose_node_dies_runs_on_another_as_it_would_here(cluster: Cluster, tmp_path: Path) -> None:
    with_head, beside = [send(cluster, tmp_path, STAY, name) for name in ("one", "other")]
    if cluster.node_of(pids_in(tmp_path / "one")[0]) != cluster.nodes[0]:
        with_head, beside = beside, with_head
    pids_in(tmp_path / "other")
    end(beside)  # now there is room on the second node alone
    sender = send(cluster, tmp_path, ONCE_MORE)
    command, helper = pids_in(tmp_path / "begun")
    end(with_head)
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
    head = head_of(cluster)
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
