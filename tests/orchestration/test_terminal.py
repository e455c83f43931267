"""A stage run from a terminal gets a terminal too: it draws bars, and its last lines still explain a failure."""

import os
import subprocess
import sys
from pathlib import Path

FLOW = """
from pathlib import Path
from clozeline.system.workspace import Workspace
from clozeline.orchestration.stage_process import failure_of
from clozeline.orchestration.stage_process import stage_environment
from clozeline.orchestration.stage_process import StageProcesses
workspace = Workspace(Path.cwd())
heard = []
ended = StageProcesses().reproduce("upper", root=workspace.root, environment=stage_environment(workspace, {}),
                                   log=workspace.logs / "upper.log", hear=heard.append)
print(type(failure_of(ended)).__name__, failure_of(ended).given)
print(len([line for line in heard if "half" in line]))
"""

STEP = r"""
import os, sys
assert sys.stderr.isatty()
assert os.get_terminal_size(sys.stderr.fileno()).columns == 93
sys.stderr.write("\r\x1b[31mhalf\x1b[0m\r\x1b[32mwhole\x1b[0m\n")
sys.stderr.write("error: it is bad\n  given:    worse\n  expected: good\n  do:       mend it\n")
sys.exit(3)
"""


def test_a_bar_is_drawn_and_the_log_keeps_its_last_state_and_the_error(toy: Path) -> None:
    (toy / "steps.py").write_text(STEP)
    ours, theirs = os.openpty()
    subprocess.run(["stty", "cols", "93"], stdin=theirs, check=True)
    flow = subprocess.Popen([sys.executable, "-c", FLOW], cwd=toy, stdout=subprocess.PIPE, stderr=theirs, text=True)
    os.close(theirs)
    said, _ = flow.communicate()
    shown = os.read(ours, 65_536)
    os.close(ours)
    assert b"\r\x1b[31mhalf\x1b[0m\r\x1b[32mwhole\x1b[0m" in shown
    assert said.split() == ["DataError", "worse", "0"]
    log = (toy / "work/logs/upper.log").read_text().splitlines()
    assert "whole" in log
    assert "error: it is bad" in log
