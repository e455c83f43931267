import subprocess
import sys

COMMAND = """
import atexit, gc, sys
from clozeline.cli import main
atexit.register(lambda: print(gc.get_threshold()[0], gc.get_freeze_count()))
sys.argv = ["clozeline", "--version"]
main()
"""


def test_a_command_searches_for_cycles_rarely_and_for_none_when_it_ends() -> None:
    told = subprocess.run([sys.executable, "-c", COMMAND], capture_output=True, text=True, check=True).stdout
    limit, num_frozen = map(int, told.split("\n")[1].split())
    assert limit == 10_000
    assert num_frozen > 10_000
