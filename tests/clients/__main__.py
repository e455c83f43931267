"""`make test-clients`: clients whose pins conflict with ours call our server from an environment of their own.

`python -m tests.clients PYTHON`: PYTHON has what requirements.lock beside this file names, and no Clozeline. First
pytest runs the tests of Hugging Face's client and of those of vector stores, and opens exported packages by
optimum-onnx. Then schemathesis asks what our OpenAPI document allows and forbids; last, of a server with keys, whether
each route wants one as the document says.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx

from tests.make import packages
from tests.make.apps import KEY, opened, running

PROJECT = Path(__file__).parents[2]
# `addopts` names plugins that are missing there; clients leave closing sockets to the garbage collector.
PYTEST = [
    "pytest",
    "--override-ini",
    "addopts=",
    "-W",
    "ignore::ResourceWarning",
    "--noconftest",
    "-p",
    "tests.clients.elsewhere",
]
EXPORT = [sys.executable, "-m", "pytest", "-q", "-n0", "tests/clients/exported.py"]
OURS = ("embedding_clients", "optimum_onnx")
TESTS = ["tests/serving/http/test_huggingface.py", *(f"tests/clients/{name}.py" for name in OURS)]
# One model of each kind, because a route without a model answers 404 and the code behind it is not tested.
MODELS = {
    "encoder": packages.write_encoder,
    "library": packages.write_classifier,
    "docsearch": packages.write_embedder,
    "topics": packages.write_topics,
    "ranker": packages.write_ranker,
    "names": packages.write_tagger,
    "reader": packages.write_answerer,
    "writer": packages.write_completer,
}
SCHEMATHESIS = ["schemathesis.cli", "--config-file", str(Path(__file__).with_name("schemathesis.toml"))]
_TENSORS = ["--include-path-regex", "^/v2/models/"]
# Models that paths name, with the options that select their routes: the tensors of /v2 differ by kind of model.
ASKED = {"encoder": [], "ranker": _TENSORS, "names": _TENSORS, "reader": _TENSORS, "writer": _TENSORS}


def main(python: str) -> int:
    """Run all tests and checks; return 0 if every one passed."""
    with tempfile.TemporaryDirectory() as folder:
        dist = Path(folder) / "dist"
        for name, write in MODELS.items():
            write(dist / name)
        os.environ["CLOZELINE_EXPORTED"] = str(Path(folder) / "exported")
        subprocess.run(EXPORT, cwd=PROJECT, check=True)
        places = [dist / name for name in MODELS]
        with running(opened(*places)) as client:
            failed = [_run([python, "-m", *PYTEST, *TESTS], PROJECT, client)]
            generated = [python, "-m", *_generated(client, "all")]
            failed += [_run([*generated, *only], dist, client, model) for model, only in ASKED.items()]
        with running(opened(*places), key=KEY) as client:
            client.headers["authorization"] = f"Bearer {KEY}"
            # With a fixed header, schemathesis expects refusals that no document names, so only this check runs, which
            # does nothing without keys. It matches the header's name in capitals.
            keyed = [*_generated(client, "ignored_auth"), "--header", f"Authorization: Bearer {KEY}"]
            failed.append(_run([python, "-m", *keyed], dist, client))
    return int(any(failed))


def _generated(client: httpx.Client, checks: str) -> list[str]:
    return [*SCHEMATHESIS, "run", f"{client.base_url}/openapi.json", "--checks", checks, "--no-color"]


def _run(command: list[str], where: Path, client: httpx.Client, model: str = "encoder") -> int:
    """Run `command` with the server's address and a model for the paths in its environment; return its exit code."""
    versions = {card["name"]: card["version"] for card in client.get("/models").json()["models"]}
    told = {"CLOZELINE_URL": str(client.base_url), "CLOZELINE_MODEL": model, "CLOZELINE_VERSION": versions[model]}
    return subprocess.run(command, cwd=where, env=os.environ | told).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
