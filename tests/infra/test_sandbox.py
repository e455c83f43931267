"""A service of compose.yaml as a sandbox, and as a plain process."""

from pathlib import Path

from tests.infra.stack.compose_file import Compose
from tests.infra.stack.sandbox import Sandbox


def test_a_sandbox_is_what_compose_yaml_says(tmp_path: Path) -> None:
    sandbox = Sandbox(Compose.read(), tmp_path / "checkout", tmp_path, is_contained=True)
    command = " ".join(sandbox.process("serving").command)
    assert command.startswith("bwrap --ro-bind / / ")
    assert "--tmpfs /tmp " in command
    assert f"--bind {tmp_path}/serving /var/lib/clozeline " in command
    assert "--uid 10001 --gid 10001 --cap-drop ALL " in command
    assert command.endswith("--chdir /var/lib/clozeline -- " + " ".join(sandbox.compose.command("serving")))


def test_without_namespaces_a_service_is_a_plain_process_with_paths_of_this_machine(tmp_path: Path) -> None:
    sandbox = Sandbox(Compose.read(), tmp_path / "checkout", tmp_path, is_contained=False)
    worker = sandbox.process("worker")
    assert worker.command == sandbox.compose.command("worker")
    assert worker.folder == tmp_path / "checkout"
    assert worker.environment["CLOZELINE_HOME"] == str(tmp_path / "checkout")
    assert worker.environment["MLFLOW_TRACKING_URI"] == "http://127.0.0.1:5000"
    assert worker.environment["MLFLOW_TRACKING_USERNAME"] == "worker"
    assert sandbox.process("mlflow").environment["PGHOST"] == "127.0.0.1"
