"""The manifests are valid, refer to what exists, and run what compose.yaml runs, as unprivileged users."""

import copy
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from ruamel.yaml import YAML

from clozeline.serving.errors import HEALTH_PATHS
from tests.infra.stack.compose_file import ROOT, Compose, read_env_file

INFRA = ROOT / "infra"
VERSIONS = ("1.30", "1.37")  # the first with preStop sleep by default, and the newest
LOAD = YAML(typ="safe")
KUSTOMIZATION: dict[str, Any] = LOAD.load(INFRA / "kustomization.yaml")
OBJECTS: list[dict[str, Any]] = [found for name in KUSTOMIZATION["resources"] for found in LOAD.load_all(INFRA / name)]
PAGE = (ROOT / "docs/pretraining.md").read_text(encoding="utf-8")
# The job of a training on several nodes.
TRAINING = [*LOAD.load_all("apiVersion" + PAGE.partition("```yaml\napiVersion")[2].partition("```")[0])]
DEPLOYMENTS = {found["metadata"]["name"]: found for found in OBJECTS if found["kind"] == "Deployment"}
PODS: dict[str, dict[str, Any]] = {name: found["spec"]["template"]["spec"] for name, found in DEPLOYMENTS.items()}
MAIN: dict[str, dict[str, Any]] = {name: pod["containers"][0] for name, pod in PODS.items()}
CONTAINERS = {name: [*pod.get("initContainers", []), *pod["containers"]] for name, pod in PODS.items()}
GENERATED = {
    kind: {it["name"]: it["envs"] for it in KUSTOMIZATION[kind]} for kind in ("configMapGenerator", "secretGenerator")
}


def test_kubernetes_accepts_every_object_and_detects_a_misspelt_key() -> None:
    for found in (*OBJECTS, *TRAINING):
        for version in VERSIONS:
            kubernetes_validate.validate(found, version, strict=True)
    broken = copy.deepcopy(DEPLOYMENTS["serving"])
    broken["spec"]["template"]["spec"]["terminationGracePeriod"] = 30
    with pytest.raises(kubernetes_validate.ValidationError, match="terminationGracePeriod"):
        kubernetes_validate.validate(broken, VERSIONS[-1], strict=True)


def test_every_reference_has_its_object() -> None:
    claims = {found["metadata"]["name"] for found in OBJECTS if found["kind"] == "PersistentVolumeClaim"}
    for name, containers in CONTAINERS.items():
        volumes = {volume["name"]: volume.get("persistentVolumeClaim") for volume in PODS[name]["volumes"]}
        assert {claim["claimName"] for claim in volumes.values() if claim} <= claims
        for container in containers:
            assert {mount["name"] for mount in container["volumeMounts"]} <= set(volumes)
            for source in container.get("envFrom", []):
                ((kind, reference),) = source.items()
                assert reference["name"] in GENERATED[kind.replace("Ref", "Generator")]
    for (secrets,) in GENERATED["secretGenerator"].values():
        assert (INFRA / f"{secrets}.example").exists()
        assert subprocess.run(["git", "check-ignore", "--quiet", secrets], cwd=INFRA, check=False).returncode == 0
    (service,) = (found for found in OBJECTS if found["kind"] == "Service")
    name = service["metadata"]["name"]
    assert service["spec"]["selector"] == DEPLOYMENTS[name]["spec"]["template"]["metadata"]["labels"]
    (port,) = service["spec"]["ports"]
    assert port["targetPort"] in {it["name"] for it in MAIN[name]["ports"]}


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_a_deployment_runs_what_compose_runs(name: str, compose: Compose) -> None:
    given, container = compose.services[name], MAIN[name]
    in_fleet = ["--fleet"] if name == "serving" else []  # several pods, but one service of compose.yaml
    assert (container["image"], container["command"]) == (given["image"], [*compose.command(name), *in_fleet])
    assert container.get("workingDir") == given.get("working_dir")
    own = {it["name"]: it["value"] for it in container.get("env", []) if "value" in it}
    (secrets,) = GENERATED["secretGenerator"][name]
    assert own.keys() | read_env_file(INFRA / f"{secrets}.example").keys() == set(given["environment"])
    told = compose.variables(name)
    elsewhere = {"PREFECT_WORKER_WEBSERVER_HOST": "0.0.0.0"}  # the cluster probes it from outside the pod
    assert own == {variable: elsewhere.get(variable, told[variable]) for variable in own}
    pause = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    assert f"{PODS[name]['terminationGracePeriodSeconds'] - pause}s" == given["stop_grace_period"]


def test_one_worker_runs_at_a_time_and_deploys_the_flows_before_it_starts_as_compose_does(compose: Compose) -> None:
    (deploy,) = (it for it in PODS["worker"]["initContainers"] if it["name"] == "deploy")
    given = compose.services["prefect-deploy"]
    assert (deploy["image"], deploy["command"]) == (given["image"], compose.command("prefect-deploy"))
    assert deploy["envFrom"] == MAIN["worker"]["envFrom"]
    assert DEPLOYMENTS["worker"]["spec"]["replicas"] == 1
    assert DEPLOYMENTS["worker"]["spec"]["strategy"] == {"type": "Recreate"}


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_a_pod_is_unprivileged_and_bounded(name: str) -> None:
    user = PODS[name]["securityContext"]
    assert user["runAsNonRoot"] is True
    assert user["runAsUser"] == user["fsGroup"] == 10001
    assert user["seccompProfile"] == {"type": "RuntimeDefault"}
    assert PODS[name]["automountServiceAccountToken"] is False
    assert "memory" in MAIN[name]["resources"]["limits"]
    drop_all = {"drop": ["ALL"]}
    contained = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": drop_all}
    assert [it["securityContext"] for it in CONTAINERS[name]] == [contained] * len(CONTAINERS[name])
    probes = [probe["httpGet"]["path"] for kind, probe in MAIN[name].items() if kind.endswith("Probe")]
    if name == "serving":
        assert {*probes} <= HEALTH_PATHS
        assert MAIN[name]["readinessProbe"]["httpGet"]["path"] == "/health/ready"


def test_an_upgrade_replaces_code_and_keeps_params_and_data(tmp_path: Path) -> None:
    image, project = tmp_path / "image", tmp_path / "project"
    (script,) = (it["command"][-1] for it in PODS["worker"]["initContainers"] if it["name"] == "project")
    script = script.replace("/srv/clozeline", str(image)).replace("/project", str(project))
    for version in ("old", "new"):
        shutil.rmtree(image, ignore_errors=True)
        for name in (f"src/{version}.py", "dvc.yaml", "params.yaml", ".dvc/config"):
            (image / name).parent.mkdir(parents=True, exist_ok=True)
            (image / name).write_text(version)
        project.mkdir(exist_ok=True)
        subprocess.run(["sh", "-euc", script], check=True)
        (project / "dvc.lock").write_text("a run")
    files = {str(path.relative_to(project)): path.read_text() for path in project.rglob("*") if path.is_file()}
    kept = {"params.yaml": "old", ".dvc/config": "old", "dvc.lock": "a run"}
    assert files == {"src/new.py": "new", "dvc.yaml": "new", **kept}
