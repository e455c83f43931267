"""The suite itself: in which order its tests run, and what they leave to each other."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_what_runs_flows_in_this_process_comes_last(request: pytest.FixtureRequest) -> None:
    """So nothing is forked from a process in which Prefect's threads live."""
    runs_flows = [item.path.parts[-2] == "flows" for item in request.session.items]
    assert runs_flows == sorted(runs_flows)


@pytest.mark.slow
def test_a_worker_shares_the_cores_before_a_room_that_was_named_imports_torch() -> None:
    """The conftest of a file that is named is read before pytest configures itself."""
    room = "tests/encoder/test_sizes.py"
    assert "import torch" in (ROOT / room).with_name("conftest.py").read_text(encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n0", "--collect-only", "--quiet", room],
        cwd=ROOT,
        env=os.environ | {"PYTEST_XDIST_WORKER_COUNT": "2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
