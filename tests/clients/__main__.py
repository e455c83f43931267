"""`make test-clients`: clients whose pins exclude ours ask a server of ours, from an environment of their own.

`python -m tests.clients PYTHON`: PYTHON has what requirements.lock beside this file names, and no Clozeline.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from clozeline.serving.app import create_app
from clozeline.serving.catalogue import Catalogue
from clozeline.serving.loading import open_source
from clozeline.serving.service import Capacity, Service
from clozeline.serving.sources import parse_sources
from tests.serving.conftest import run_app
from tests.tiny_packages import write_classifier, write_encoder

PROJECT = Path(__file__).parents[2]
TESTS = "tests/serving/protocols/test_huggingface.py"


def main(python: str) -> int:
    """The exit code of the tests."""
    with tempfile.TemporaryDirectory() as folder:
        dist = Path(folder) / "dist"
        write_encoder(dist / "encoder")
        write_classifier(dist / "library")
        service = Service(Capacity(num_workers=1))
        sources = parse_sources([str(dist / "encoder"), str(dist / "library")])
        service.open(Catalogue([open_source(source, "int8") for source in sources]))
        with run_app(create_app(service)) as client:
            options = ["--override-ini", "addopts=", "--noconftest", "-p", "tests.clients.elsewhere"]
            command = [python, "-m", "pytest", *options, TESTS]  # addopts names plugins that are not there
            environment = {**os.environ, "CLOZELINE_URL": str(client.base_url)}
            return subprocess.run(command, cwd=PROJECT, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
