"""MLflow's faults are told in our words."""

import sys
from pathlib import Path

import pytest
from mlflow.artifacts import download_artifacts

from clozeline.errors import ArtifactError
from clozeline.registry.client import told


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
