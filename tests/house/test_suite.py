"""The suite itself: its slow tests, their order, and the state that tests leave to each other."""

import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name

import huggingface_hub
import mlflow
import pytest
import torch

from tests.conftest import LONGEST
from tests.make.processes import run_to_end
from tests.make.session import restored_state
from tests.slow_tests import SLOW, is_slow

ROOT = Path(__file__).parents[2]


def test_tests_are_marked_by_what_their_fixtures_reach_and_those_that_run_flows_come_last(
    request: pytest.FixtureRequest,
) -> None:
    """Otherwise later tests would fork a process in which Prefect's threads run."""
    items = request.session.items
    packages = [item for item in items if "export_model" in getattr(item, "fixturenames", ())]
    assert all(item.get_closest_marker("slow") for item in packages)
    runs_flows = [item.path.parts[-2] == "flows" for item in items]
    assert runs_flows == sorted(runs_flows)


def test_a_test_worker_limits_its_threads_before_a_named_test_file_imports_torch() -> None:
    """Pytest reads the conftest of a file named on the command line before it configures itself."""
    room = "tests/encoder/test_architecture.py"
    assert "import torch" in (ROOT / room).with_name("conftest.py").read_text(encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-n0", "--collect-only", "--quiet", room]
    run_to_end(command, ROOT, os.environ | {"PYTEST_XDIST_WORKER_COUNT": "2"})


def test_what_tools_leave_is_in_a_folder_that_goes_with_the_session(tmp_path: Path) -> None:
    folder = Path(tempfile.gettempdir())
    assert folder.name.startswith("clozeline-tests-")
    assert Path(huggingface_hub.constants.HF_HOME).is_relative_to(folder)
    assert not tmp_path.is_relative_to(folder), "pytest keeps what failed tests wrote"


def test_what_a_command_sets_for_its_process_is_as_before_for_the_next_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHANGED", "before")
    monkeypatch.setenv("REMOVED", "before")
    monkeypatch.delenv("NEW", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = [*sys.path]
    logger = logging.getLogger("clozeline.stages")
    with restored_state():
        os.environ.update(CHANGED="after", NEW="after")
        del os.environ["REMOVED"]
        sys.path = ["/code/of/a/model", *sys.path]
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        logger.setLevel(logging.ERROR)
        mlflow.set_tracking_uri("sqlite:///of-this-test.db")
        drawn = torch.rand(3)
    assert [os.environ.get(name) for name in ("CHANGED", "REMOVED", "NEW")] == ["before", "before", None]
    assert "MLFLOW_TRACKING_URI" not in os.environ
    assert "of-this-test" not in mlflow.get_tracking_uri()
    assert sys.path == before
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert logger.level == logging.NOTSET
    with restored_state():
        assert torch.equal(torch.rand(3), drawn)


class Starter:
    def start(self) -> None:
        subprocess.run([sys.executable])


def imports_a_module_and_exports() -> None:
    from clozeline.exporting import to_onnx

    to_onnx.export_onnx()


def starts_in_a_row() -> list[None]:
    return [Starter().start() for _ in range(3)]


def imports_and_reads() -> object:
    from clozeline.exporting import to_onnx

    return to_onnx.logging


def reads() -> str:
    return Path(__file__).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (Starter.start, True),
        (starts_in_a_row, True),
        (imports_a_module_and_exports, True),
        (imports_and_reads, False),
        (reads, False),
    ],
)
def test_a_test_that_reaches_slow_code_is_slow(
    function: Callable[[], None], expected: bool, request: pytest.FixtureRequest
) -> None:
    item = pytest.Function.from_parent(request.node.parent, name="test", callobj=function)
    assert is_slow(item) == expected


def test_every_listed_file_and_place_exists() -> None:
    """If a listed module or function were renamed, its tests would count as fast."""
    assert [name for name in LONGEST if not (ROOT / "tests" / name).is_file()] == []
    assert [place for place in SLOW if not (resolve_name(place) if ":" in place else find_spec(place))] == []
