"""The stack of compose.yaml comes up, runs a night, releases, serves, goes down, and comes up again from its backup, in
sandboxes.
"""

import json
import shutil
import subprocess
import sys
from typing import Any

import pytest

from tests.infra.stack.compose_file import ROOT
from tests.make.packages import write_classifier, write_encoder
from tests.make.projects import make_release_project

pytestmark = pytest.mark.deployment

Steps = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Steps:
    """What is said in the whole life of a stack whose worker runs a project with two packages."""
    folder = tmp_path_factory.mktemp("stack")
    packages = {"encoder": folder / "packages/encoder", "library": folder / "packages/library"}
    write_encoder(packages["encoder"])
    write_classifier(packages["library"])
    project = make_release_project(folder / "project", packages)
    for name in ("flows", "infra"):
        shutil.copytree(ROOT / name, project / name)
    command = [sys.executable, "-m", "tests.infra.stack", str(project), str(folder / "state")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return {step.pop("step"): step for step in map(json.loads, done.stdout.splitlines())}


def test_servers_start_and_require_their_own_host_name_and_a_password_and_stop_on_request(steps: Steps) -> None:
    assert steps["up"]["services"] == ["mlflow", "prefect", "worker"]
    refusals = {"another name": 403, "wrong password": 401, "prefect without password": 401}
    assert steps["access"] == {"own name": 200, **refusals}
    # Prefect's server hands SIGTERM on to uvicorn, and ends as one that was killed by it.
    assert steps["down"]["exit_codes"] == {"serving": 0, "worker": 0, "prefect": 143, "mlflow": 0}


def test_a_nightly_run_completes_and_serving_works_on_a_read_only_root_and_may_only_read_artifacts(
    steps: Steps,
) -> None:
    assert [night.split()[0] for night in steps["nightly"]["nights"]] == ["Completed"]
    assert steps["serving"]["models"] == {"clozeline-encoder": "1", "clozeline-library": "1"}
    assert len(steps["serving"]["vector"][0]) == 8
    assert "drift" in steps, "the worker asks the served models for their traffic"
    assert steps["store"] == {"buckets": ["dvc", "mlflow"], "folders": ["artifacts"]}
    assert steps["write as serving"]["said"] == ["refused", "403"]


def test_a_backup_restores_the_state_unless_servers_use_the_databases(steps: Steps) -> None:
    """Between `down` and `up again`, everything in the databases and the store was deleted."""
    assert "mlflow is in use, and nothing was changed" in steps["restore in use"]["said"]
    assert "docker compose -f infra/compose.yaml stop serving worker prefect mlflow" in steps["restore in use"]["said"]
    again = steps["up again"]
    assert (again["vector"], again["models"]) == (steps["serving"]["vector"], steps["serving"]["models"])
    assert again["nights"] == steps["nightly"]["nights"]
