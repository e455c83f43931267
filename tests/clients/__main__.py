"""`make test-clients`: clients whose pins exclude ours ask a server of ours, from an environment of their own.

`python -m tests.clients PYTHON`: PYTHON has what requirements.lock beside this file names, and no Clozeline. First
pytest runs the tests of Hugging Face's client, then schemathesis asks what our OpenAPI document allows and forbids.
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
from tests.tiny_packages import (
    write_answerer,
    write_classifier,
    write_embedder,
    write_encoder,
    write_ranker,
    write_tagger,
    write_topics,
)

PROJECT = Path(__file__).parents[2]
# `addopts` names plugins that are not there.
PYTEST = ["pytest", "--override-ini", "addopts=", "--noconftest", "-p", "tests.clients.elsewhere"]
TESTS = "tests/serving/protocols/test_huggingface.py"
MODELS = {
    "encoder": write_encoder,
    "library": write_classifier,
    "docsearch": write_embedder,
    "topics": write_topics,
    "ranker": write_ranker,
    "names": write_tagger,
    "reader": write_answerer,
}
"""One of each kind: a route without a model answers 404, and what stands behind it is not asked."""
SCHEMATHESIS = ["schemathesis.cli", "--config-file", str(Path(__file__).with_name("schemathesis.toml"))]
_TENSORS = ["--include-path-regex", "^/v2/models/"]
ASKED = {"encoder": [], "ranker": _TENSORS, "names": _TENSORS, "reader": _TENSORS}
"""Of which models a path may name one, and what is asked with it: in tensors, each kind is asked otherwise."""


def main(python: str) -> int:
    """0 if every test and every check passed."""
    with tempfile.TemporaryDirectory() as folder:
        dist = Path(folder) / "dist"
        for name, write in MODELS.items():
            write(dist / name)
        service = Service(Capacity(num_workers=1))
        sources = parse_sources([str(dist / name) for name in MODELS])
        service.open(Catalogue([open_source(source, "int8") for source in sources]))
        with run_app(create_app(service)) as client:
            url = str(client.base_url)
            environment = {**os.environ, "CLOZELINE_URL": url}
            versions = {card["name"]: card["version"] for card in client.get("/models").json()["models"]}
            commands: list[tuple[list[str], Path, dict[str, str]]] = [([*PYTEST, TESTS], PROJECT, {})]
            for model, only in ASKED.items():
                generated = ["run", f"{url}/openapi.json", "--checks", "all", "--no-color", *only]
                named = {"CLOZELINE_MODEL": model, "CLOZELINE_VERSION": versions[model]}
                commands.append(([*SCHEMATHESIS, *generated], Path(folder), named))
            failed = [
                subprocess.run([python, "-m", *command], cwd=where, env=environment | named).returncode
                for command, where, named in commands
            ]
            return int(any(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
