"""For pytest in the environment of the clients: the server runs elsewhere."""

import os
from collections.abc import Iterator
from importlib.metadata import version

import httpx
import pytest


@pytest.fixture(scope="session")
def client() -> Iterator[httpx.Client]:
    with httpx.Client(base_url=os.environ["CLOZELINE_URL"], trust_env=False, timeout=60) as client:
        yield client


def pytest_report_header() -> str:
    return f"huggingface_hub {version('huggingface_hub')}, asking {os.environ['CLOZELINE_URL']}"
