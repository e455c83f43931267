"""Errors of MLflow become our own errors."""

import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import requests
from mlflow.artifacts import download_artifacts

from clozeline.registry.versions import Registry, registry_errors
from clozeline.system.errors import ArtifactError


@pytest.fixture
def httpserver() -> Iterator[Callable[[int], str]]:
    """Function that returns the address of a server that answers every request with `status`, without JSON."""
    servers: list[ThreadingHTTPServer] = []

    def start(status: int) -> str:
        class Refusing(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(b"Permission denied")

            do_PUT = do_GET

            def log_message(self, format: str, *told: object) -> None:
                pass

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Refusing))
        Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("address", "module", "package"),
    [
        ("s3://models/1", "boto3", "boto3"),
        ("gs://models/1", "google.cloud", "google-cloud-storage"),
        ("wasbs://models@team.blob.core.windows.net/1", "azure.storage.blob", "azure-storage-blob"),
    ],
)
def test_a_store_whose_client_is_not_installed_is_reported_with_the_command_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, module: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with (
        pytest.raises(ArtifactError, match="files of version 1") as caught,
        registry_errors("files of version 1", "http://registry"),
    ):
        download_artifacts(artifact_uri=address, dst_path=str(tmp_path))
    assert "http://registry" in str(caught.value.given)
    assert f"pip install {package}`" in caught.value.do


REFUSED = [(401, "401 Unauthorized"), (403, "403 Forbidden")]


@pytest.mark.parametrize(("status", "told_as"), REFUSED)
def test_a_caller_refused_by_the_server_is_reported_as_refused(
    httpserver: Callable[[int], str], monkeypatch: pytest.MonkeyPatch, status: int, told_as: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ada")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "secret")
    address = httpserver(status)
    with pytest.raises(ArtifactError, match="refuses the request") as caught:
        Registry.open(address).at("clozeline-encoder", "champion")
    assert f"{address}/api/2.0/mlflow/registered-models/alias of user ada: {told_as}" in caught.value.problem
    assert "MLFLOW_TRACKING_USERNAME" in caught.value.do
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(("status", "told_as"), REFUSED)
def test_a_file_refused_by_the_server_is_reported_as_refused(
    httpserver: Callable[[int], str], monkeypatch: pytest.MonkeyPatch, status: int, told_as: str
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_USERNAME", raising=False)
    address = httpserver(status)
    answer = requests.put(f"{address}/api/2.0/mlflow-artifacts/artifacts/x", timeout=60)  # as MLflow's client does
    with pytest.raises(ArtifactError, match="refuses the request") as caught, registry_errors("evidence", address):
        answer.raise_for_status()
    assert f"{answer.url} of nobody: no user is set: {told_as}" in caught.value.problem
