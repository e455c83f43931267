"""`clozeline demo` runs anywhere, keeps no files, and shows answers before and after training."""

import shutil
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]


def test_a_few_steps_run_in_a_fresh_project(tmp_path: Path) -> None:
    """CI runs the full demo in both modes."""
    shutil.copy(CHECKOUT / "params.yaml", tmp_path)
    command = [sys.executable, "-m", "clozeline", "demo", "--mode", "clm", "--steps", "10"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "docstrings of the standard library" in done.stdout
    assert done.stdout.count("(right: ") == 4
    assert done.stdout.count("continues after:") == 4
    assert "from token frequencies alone" in " ".join(done.stdout.split())
    assert [path.name for path in tmp_path.iterdir()] == ["params.yaml"]
