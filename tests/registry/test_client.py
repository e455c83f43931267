"""Errors of MLflow become our own errors."""

import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from mlflow.artifacts import download_artifacts

from clozeline.errors import ArtifactError
from clozeline.registry.client import told
from clozeline.registry.versions import Registry


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
def test_files_in_a_store_whose_client_is_not_installed_are_told_with_the_command_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, module: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with (
        pytest.raises(ArtifactError, match="files of version 1") as caught,
        told("files of version 1", "http://registry"),
    ):
        download_artifacts(artifact_uri=address, dst_path=str(tmp_path))
    assert "http://registry" in str(caught.value.given)
    assert f"pip install {package}`" in caught.value.do


@pytest.mark.parametrize(("status", "told_as"), [(401, "401 Unauthorized"), (403, "403 Forbidden")])
def test_a_server_that_refuses_the_caller_is_told_as_that(
    httpserver: Callable[[int], str], status: int, told_as: str
) -> None:
    address = httpserver(status)
    with pytest.raises(ArtifactError, match="refuses the request") as caught:
        Registry.open(address).at("clozeline-encoder", "champion")
    assert caught.value.given == f"{address}: {told_as}"
    assert "MLFLOW_TRACKING_USERNAME" in caught.value.do
