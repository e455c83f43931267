"""Runs one benchmark (`python tests/benchmarks NAME`) or, without a name, all benchmarks in turn.

Each benchmark is a script, which gets the arguments after the name.
"""

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """Return the benchmarks: the files of this folder, except tests and this file."""
    return sorted(file.stem for file in FOLDER.glob("*.py") if not file.stem.startswith(("test_", "__")))


def main(arguments: list[str]) -> int:
    """Run the benchmarks; return exit status 0 if every one ran."""
    chosen = arguments[:1] or names()
    if unknown := [name for name in chosen if name not in names()]:
        sys.stderr.write(f"there is no benchmark {unknown[0]!r}; there are: {', '.join(names())}\n")
        return 2
    failed = [name for name in chosen if subprocess.call(_command(name, arguments[1:]))]
    if failed:
        sys.stderr.write(f"failed: {', '.join(failed)}\n")
    return int(bool(failed))


def _command(name: str, arguments: list[str]) -> list[str]:
    return [sys.executable, str(FOLDER / f"{name}.py"), *arguments]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
