"""Runs one benchmark (`python tests/benchmarks NAME`) or, without a name, all benchmarks in turn.

`BENCHMARKS` in comparison/frame.py has a row for each: its function, which reads the arguments after the name.
"""

import subprocess
import sys
from pkgutil import resolve_name

from comparison.frame import BENCHMARKS


def main(arguments: list[str]) -> int:
    """Run one benchmark, or each in a process of its own; return exit status 0 if every one ran."""
    if not arguments:
        failed = [name for name in BENCHMARKS if subprocess.call([sys.executable, __file__, name])]
        sys.stderr.write(f"failed: {', '.join(failed)}\n" if failed else "")
        return int(bool(failed))
    name, *sys.argv[1:] = arguments
    if name not in BENCHMARKS:
        sys.stderr.write(f"there is no benchmark {name!r}; there are: {', '.join(BENCHMARKS)}\n")
        return 2
    sys.argv[0] = name
    resolve_name(BENCHMARKS[name].run)()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
