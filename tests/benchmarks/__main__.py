"""Runs one benchmark (`python tests/benchmarks NAME`) or, without a name, all benchmarks in turn.

Each benchmark is a module with a `main`, which reads the arguments after the name.
"""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """Return the benchmarks: the files of this folder, except tests and this file."""
    return sorted(file.stem for file in FOLDER.glob("*.py") if not file.stem.startswith(("test_", "conftest", "__")))


def main(arguments: list[str]) -> int:
    """Run one benchmark, or each in a process of its own; return exit status 0 if every one ran."""
    if not arguments:
        failed = [name for name in names() if subprocess.call([sys.executable, str(FOLDER), name])]
        sys.stderr.write(f"failed: {', '.join(failed)}\n" if failed else "")
        return int(bool(failed))
    name, *sys.argv[1:] = arguments
    if name not in names():
        sys.stderr.write(f"there is no benchmark {name!r}; there are: {', '.join(names())}\n")
        return 2
    sys.argv[0] = f"{name}.py"
    import_module(name).main()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
