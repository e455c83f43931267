"""A project that deploys infra/prefect.yaml to a Prefect server of its own."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import httpx
from ruamel.yaml import YAML

from tests.make.processes import run_to_end

ROOT: Final = Path(__file__).parents[2]
NO_VARIABLES: Final[Mapping[str, str]] = MappingProxyType({})

# Like flows/nightly.py, it uses other files of its package, but it does no work.
FLOW = """
from prefect import flow

from flows.work import work


@flow(name="nightly")
def nightly() -> None:
    work()
"""
WORK = """
import os
from pathlib import Path


def work() -> None:
    Path("ran-in.txt").write_text(os.getcwd(), encoding="utf-8")
"""


def write_flows(project: Path) -> None:
    """Write the flows `nightly` and `drift`."""
    (project / "flows").mkdir(parents=True)
    shutil.copy(ROOT / "flows/__init__.py", project / "flows")
    drift = FLOW.replace("nightly()", 'nightly(url: str = "")').replace("nightly", "drift")
    for name, text in {"drift": drift, "nightly": FLOW, "work": WORK}.items():
        (project / f"flows/{name}.py").write_text(text, encoding="utf-8")


def prefect_file() -> dict[str, Any]:
    content: dict[str, Any] = YAML(typ="safe").load(ROOT / "infra/prefect.yaml")
    return content


@dataclass(frozen=True)
class Server:
    """Prefect server process, with a project that deploys to it."""

    home: Path
    project: Path
    command: list[str]
    environment: dict[str, str]
    api: httpx.Client
    own_environment: dict[str, str]  # environment of the server; `environment` is that of its clients

    def deploy(
        self, change: Callable[[dict[str, Any]], None] = lambda file: None, variables: Mapping[str, str] = NO_VARIABLES
    ) -> str:
        """Deploy infra/prefect.yaml as committed, except for `change`, with these variables in the environment; return
        what the command printed.
        """
        content = prefect_file()
        change(content)
        YAML().dump(content, self.project / "infra/prefect.yaml")
        return run_to_end(self.command, self.project, {**self.environment, **variables})

    def deployments(self) -> dict[str, dict[str, Any]]:
        answer = self.api.post("/deployments/filter", json={}).raise_for_status()
        return {deployment["name"]: deployment for deployment in answer.json()}

    def nightly(self) -> dict[str, Any]:
        return self.deployments()["nightly"]
