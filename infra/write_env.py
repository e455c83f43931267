"""Write infra/.env: a copy of .env.example with random bytes for its empty values.

Run it once per installation: `python infra/write_env.py`. An existing file, with its secrets, is kept.
"""

import os
import secrets
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
# The object store accepts only access keys of this form.
PREFIXES = {"STORE_ACCESS_KEY": ("GK", 16)}


def main(folder: Path) -> int:
    target = folder / ".env"
    lines = [filled(line) for line in (folder / ".env.example").read_text(encoding="utf-8").splitlines()]
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        sys.stderr.write(f"{target} exists and was not changed; delete it to create new secrets\n")
        return 1
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    return 0


def filled(line: str) -> str:
    """Return `NAME=` with a random hexadecimal value, or any other line unchanged."""
    name, equals, value = line.partition("=")
    if line.startswith("#") or not equals or value:
        return line
    prefix, num_bytes = PREFIXES.get(name, ("", 32))
    return f"{name}={prefix}{secrets.token_hex(num_bytes)}"


if __name__ == "__main__":
    sys.exit(main(FOLDER))
