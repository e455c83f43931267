"""Promote versions 1 to N of a model at the same time, each from a process of its own: `… URL NAME N`.

The processes are forked after MLflow was imported, so that they all start at once. Each first tries to become the first
champion, and then to replace whichever champion there is. Prints the exit codes: 1 for a process whose first try won.
"""

import os
import random
import sys
import time
import traceback

from clozeline.registry.changes import ChampionChangedError
from clozeline.registry.versions import Registry


def promote(url: str, name: str, number: str) -> int:
    """Promote version `number`; return 1 if the first try won."""
    registry = Registry.open(url)
    version, why = registry.version(name, number), f"number {number}"
    try:
        registry.promote(version, replacing=None, why=why)
        return 1
    except ChampionChangedError:
        pass
    waiting_seconds = 0.0
    while True:
        time.sleep(random.uniform(0, waiting_seconds))
        started = time.monotonic()
        try:
            registry.promote(version, replacing=registry.changes(name)[-1].after, why=why)
            return 0
        except ChampionChangedError:
            waiting_seconds += 4 * (time.monotonic() - started)


def main(url: str, name: str, num_processes: int) -> None:
    children = []
    for number in range(1, num_processes + 1):
        child = os.fork()
        if not child:
            code = 99
            try:
                code = promote(url, name, str(number))
            except Exception:  # noqa: BLE001  # the child must not go on as its parent
                traceback.print_exc()
            finally:
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    sys.stdout.write(" ".join(map(str, codes)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
