"""Each package becomes a version once, aliases name the live version, and anyone can load a registered model."""

import json
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import mlflow
import onnx
import pytest
from mlflow import MlflowClient

from clozeline.inference.package import load
from clozeline.records.package import FILES, package_sha256, read_manifest, record_of, verify
from clozeline.registry import models
from clozeline.registry.models import PACKAGE, Registered
from clozeline.registry.publishing import Evidence, Publisher, example_texts
from clozeline.registry.served_model import PyfuncModel
from clozeline.registry.versions import fetch_package
from clozeline.registry.wheel import write_wheel
from clozeline.system.errors import ArtifactError, DataError, ParamsError, TransientError
from clozeline.system.workspace import Workspace
from clozeline.tracking.delivery import WORKSPACE
from clozeline.tracking.mlflow import experiment_id
from tests.make import packages
from tests.make.packages import card_in
from tests.serving.conftest import Serve

NAME = "clozeline-encoder"
URI = f"models:/{NAME}@champion"


def publisher_in(root: Path) -> Publisher:
    return Publisher(Workspace(root).defaults()["MLFLOW_TRACKING_URI"])


def with_environment(root: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    workspace = Workspace(root)
    for name, value in workspace.defaults().items():
        monkeypatch.setenv(name, value)
    return workspace


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with an empty, migrated database."""
    root = tmp_path_factory.mktemp("registry")
    publisher_in(root)
    return root


def evidence_in(folder: Path) -> Evidence:
    (folder / "evaluate.json").write_text('{"perplexity": 12.5}')
    files, tags = {"metrics/evaluate.json": folder / "evaluate.json"}, {"mlflow.source.git.commit": "abc"}
    return Evidence(files=files, tags=tags, card="- perplexity: 12.5")


@pytest.fixture
def evidence(tmp_path: Path) -> Evidence:
    return evidence_in(tmp_path)


def promoted(publisher: Publisher, package: Path, evidence: Evidence) -> Registered:
    version = publisher.publish(package, NAME, evidence)
    publisher.registry.nominate(version)
    publisher.registry.promote(version)
    return version


@pytest.fixture(scope="module")
def template(empty: Path, tmp_path_factory: pytest.TempPathFactory, encoder_package: Path) -> Path:
    """A project whose encoder is the champion. A copy keeps the version: its database finds the copied files."""
    root = shutil.copytree(empty, tmp_path_factory.mktemp("released") / "project")
    promoted(publisher_in(root), encoder_package, evidence_in(root))
    return root


@pytest.fixture
def workspace(empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    return with_environment(shutil.copytree(empty, tmp_path / "project"), monkeypatch)


@pytest.fixture
def publisher(workspace: Workspace) -> Publisher:
    return publisher_in(workspace.root)


@pytest.fixture
def released(template: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """The project with a champion, which a test may only read."""
    return with_environment(template, monkeypatch)


def test_each_package_becomes_a_version_once_with_its_evidence_and_model_card(
    publisher: Publisher, encoder_package: Path, evidence: Evidence, tmp_path: Path
) -> None:
    first = publisher.publish(encoder_package, NAME, evidence)
    assert publisher.publish(encoder_package, NAME, evidence) == first
    assert first.package_sha256 == package_sha256(encoder_package)
    with publisher.evidence(first) as folder:
        assert (folder / "metrics/evaluate.json").read_text() == '{"perplexity": 12.5}'
        assert card_in(folder).sections == {**card_in(encoder_package).sections, "Release": "- perplexity: 12.5"}
    assert publisher.registry.run_of(first).data.tags["mlflow.source.git.commit"] == "abc"
    described = MlflowClient(mlflow.get_tracking_uri()).get_model_version(NAME, "1").description
    assert described.endswith("\n\n- perplexity: 12.5")
    other = shutil.copytree(encoder_package, tmp_path / "other")
    with (other / FILES.manifest).open("a") as manifest:
        manifest.write("\n")
    assert (first.version, publisher.publish(other, NAME, evidence).version) == ("1", "2")


def test_the_runs_of_killed_releases_of_this_workspace_are_closed(publisher: Publisher, workspace: Workspace) -> None:
    address = workspace.defaults()["MLFLOW_TRACKING_URI"]
    client = MlflowClient(address)
    experiment = experiment_id(client, address)
    ours, theirs = (client.create_run(experiment, tags={WORKSPACE: name}).info.run_id for name in ("ours", "theirs"))
    publisher.close_killed("ours")
    assert (client.get_run(ours).info.status, client.get_run(theirs).info.status) == ("KILLED", "RUNNING")


def change_weights(package: Path) -> None:
    """Replace the registered weights, and record the new hash in the manifest."""
    graph = onnx.load(package / FILES.int8)
    weights = next(tensor for tensor in graph.graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT)
    weights.raw_data = bytes(len(weights.raw_data))
    onnx.save(graph, package / FILES.int8)
    manifest = read_manifest(package)
    files = {**manifest.files, FILES.int8: record_of(package / FILES.int8)}
    manifest.model_copy(update={"files": files}).write(package / FILES.manifest)
    verify(package, read_manifest(package))


def flip_a_byte_of_fp32(package: Path) -> None:
    """Damage the fp32 graph and keep the manifest; INT8 is served."""
    assert read_manifest(package).served == "int8"
    graph = bytearray((package / FILES.fp32).read_bytes())
    graph[len(graph) // 2] ^= 1
    (package / FILES.fp32).write_bytes(graph)


def test_what_was_damaged_in_the_registry_is_named(
    publisher: Publisher, workspace: Workspace, encoder_package: Path, evidence: Evidence
) -> None:
    """The weights that MLflow loads, a file without which the package does not load, or the evidence."""
    version = promoted(publisher, encoder_package, evidence)
    texts = example_texts(read_manifest(encoder_package))
    publisher.check(version, texts)
    package = models.fetch(URI).folder
    whole = (package / FILES.tokenizer).read_bytes()
    (package / FILES.tokenizer).write_text("{}")
    with pytest.raises(ArtifactError, match=r"tokenizer\.json"):
        publisher.check(version, texts)
    (package / FILES.tokenizer).write_bytes(whole)
    change_weights(package)
    with pytest.raises(ArtifactError, match=f"{NAME} version 1: package sha256"):
        mlflow.pyfunc.load_model(URI)
    shutil.rmtree(workspace.mlflow / "artifacts" / version.run_id)
    with pytest.raises(ArtifactError, match=f"evidence files of {NAME} version 1"), publisher.evidence(version):
        pass


@pytest.mark.parametrize(
    ("change", "told"),
    [(change_weights, f"{NAME} version 1: package sha256"), (flip_a_byte_of_fp32, r"model\.onnx")],
)
def test_a_package_that_differs_from_the_registered_one_is_refused(
    template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None], told: str
) -> None:
    """It is found in the tables of the database, and then by MLflow."""
    copied = with_environment(shutil.copytree(template, tmp_path / "project"), monkeypatch)
    change(models.fetch(URI, copied).folder)
    with pytest.raises(ArtifactError, match=told):
        models.fetch(URI, copied)
    monkeypatch.setattr(models, "package_in_own_database", lambda *asked: None)
    with pytest.raises(ArtifactError, match=told):
        models.fetch(URI, copied)


def test_an_encoder_fills_and_embeds_through_mlflow(released: Workspace, encoder_package: Path) -> None:
    model = mlflow.pyfunc.load_model(URI)
    masked, plain = model.predict(["the [MASK] reads a sentence", "the encoder"])
    assert [len(words) for words in masked["masks"]] == [5]
    assert {"score", "token", "token_str", "sequence"} == set(masked["masks"][0][0])
    assert (plain["masks"], len(plain["embedding"])) == ([], read_manifest(encoder_package).hidden_size)
    (three,) = model.predict(["a [MASK]"], params={"top_k": 3})
    assert len(three["masks"][0]) == 3


def test_a_registered_model_needs_no_torch_and_no_pickle(released: Workspace) -> None:
    code = (
        "import mlflow, sys\n"
        "for name in ('torch', 'transformers', 'optimum', 'prefect', 'dvc'): sys.modules[name] = None\n"
        f"mlflow.pyfunc.load_model('{URI}').predict(['a [MASK]'])\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, **released.defaults()})
    names = [file.name for file in (released.mlflow / "artifacts").rglob("model/**/*")]
    assert not [name for name in names if name.endswith((".pkl", ".pickle", ".bin"))]


def test_a_registered_model_carries_the_wheel_that_its_requirements_install(
    released: Workspace, tmp_path: Path
) -> None:
    """`mlflow models serve` installs them, and no index has Clozeline."""
    (requirements,) = (released.mlflow / "artifacts").rglob("model/requirements.txt")
    wheel, mlflow_itself = requirements.read_text().splitlines()
    assert (requirements.parent / wheel).name == write_wheel(tmp_path).name
    assert (requirements.parent / wheel).read_bytes() == write_wheel(tmp_path).read_bytes()
    assert mlflow_itself.startswith("mlflow-skinny==")


class _Planted:
    """Object that runs code when it is unpickled."""

    def __init__(self, code: str) -> None:
        self._code = code

    def __reduce__(self) -> tuple[object, ...]:
        return exec, (self._code,)


def plant(package: Path, marker: Path) -> None:
    """Plant code that writes `marker` wherever a loader of the registered model around `package` might run code."""
    model = package.parents[1]
    code = f"import pathlib; pathlib.Path({str(marker)!r}).write_text('ran')\n"
    (script,) = model.glob("*.py")  # the script that MLflow runs
    script.write_text(code)
    for folder in (model, package):
        for name in ("__init__.py", "sitecustomize.py", "served_model.py", "modeling.py", "conftest.py"):
            (folder / name).write_text(code)
        for name in ("python_model.pkl", "model.pkl", "pytorch_model.bin", "tokenizer.pkl"):
            (folder / name).write_bytes(pickle.dumps(_Planted(code)))
    remote = {"auto_map": {"AutoModel": "modeling.Model", "AutoTokenizer": "modeling.Tokenizer"}}
    for name in ("config.json", "tokenizer_config.json"):
        (package / name).write_text(json.dumps(remote))


def test_code_planted_in_a_registered_model_runs_neither_in_the_server_nor_in_a_release(
    publisher: Publisher, encoder_package: Path, evidence: Evidence, workspace: Workspace, tmp_path: Path
) -> None:
    version = promoted(publisher, encoder_package, evidence)
    marker = tmp_path / "marker"
    plant(models.fetch(URI, workspace).folder, marker)
    server = Serve(workspace.root, URI, "--port", "0")
    answer = httpx.post(f"{server.url()}/fill-mask", json={"inputs": "the [MASK]"}, trust_env=False)
    server.process.terminate()
    assert (answer.status_code, answer.headers["x-model-version"]) == (200, "1")
    assert server.end()[0] == 0
    load(fetch_package(URI, workspace)[0])  # with MLflow's client, as from a remote registry
    with pytest.raises(ArtifactError, match=str(version)):
        publisher.check(version, example_texts(read_manifest(encoder_package)))  # as the next release does
    assert not marker.exists()
    loading = [sys.executable, "-c", f"import mlflow; mlflow.pyfunc.load_model({URI!r})"]
    subprocess.run(loading, check=False, capture_output=True, env={**os.environ, **workspace.defaults()})
    assert marker.read_text() == "ran"  # MLflow's own loader does run the planted code


UNREACHABLE = "http://127.0.0.1:9"


def test_a_model_that_is_not_found_is_refused_by_name(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for uri, error, told in (
        (URI, ArtifactError, NAME),
        (f"models:/{NAME}/7", ArtifactError, NAME),
        ("models:/nothing", ParamsError, "models:/"),
        (URI, TransientError, UNREACHABLE),
    ):
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        with_environment(empty, monkeypatch)
        if error is TransientError:
            monkeypatch.setenv("MLFLOW_TRACKING_URI", UNREACHABLE)
        with pytest.raises(error, match=told):
            models.fetch(uri)


def test_without_a_registry_there_are_no_champions_and_the_error_says_where_it_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert models.champions(Workspace(tmp_path)) == []
    for ask in (models.fetch, models.live_version):
        with pytest.raises(ArtifactError, match=URI) as raised:
            ask(URI, Workspace(tmp_path))
        assert str(tmp_path / "work" / "mlflow" / "mlflow.db") in raised.value.cause
    assert list(tmp_path.iterdir()) == [], "none is created"


def opened(package: Path) -> PyfuncModel:
    model = PyfuncModel()
    model.load_context(SimpleNamespace(artifacts={PACKAGE: str(package)}))
    return model


def test_a_registered_tagger_answers_each_text(tmp_path: Path) -> None:
    packages.write_tagger(tmp_path / "tagger")
    records = opened(tmp_path / "tagger").predict(None, ["open the lists of a file", "a"])
    assert [set(record) for record in records] == [{"entities"}] * 2
    assert set(records[0]["entities"][0]) == {"entity_group", "score", "word", "start", "end"}


@pytest.mark.parametrize(
    ("kind", "key", "texts", "told"),
    [
        ("answerer", "answers", ['{"question": "a", "context": "b"}', "who?"], "text 1 .*`question` and `context`"),
        ("ranker", "labels", ["open the file"], "text 0 .*`text` and `text_pair`"),
    ],
)
def test_a_pair_model_takes_both_texts_of_each_row_and_refuses_one_alone(
    tmp_path: Path, kind: str, key: str, texts: Sequence[str], told: str
) -> None:
    getattr(packages, f"write_{kind}")(tmp_path / kind)
    model, example = opened(tmp_path / kind), example_texts(read_manifest(tmp_path / kind))
    records = model.predict(None, example, {"top_k": 2})
    pairs = [tuple(json.loads(text).values()) for text in example]
    own: Any = load(tmp_path / kind)
    expected = own.ask(pairs, top_k=2) if kind == "answerer" else own.classify(pairs, top_k=2)
    scores = [[one["score"] for one in record[key]] for record in records]
    assert scores == [pytest.approx([one.score for one in best]) for best in expected]
    with pytest.raises(DataError, match=told):
        model.predict(None, texts)


def test_the_same_files_give_the_same_wheel_which_installs_the_package_and_its_command(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    wheel, two = (write_wheel(tmp_path / name) for name in ("one", "two"))
    assert wheel.read_bytes() == two.read_bytes()
    names = zipfile.ZipFile(wheel).namelist()
    assert not [name for name in names if "__pycache__" in name]
    for part in (".html", ".dist-info/METADATA", ".dist-info/RECORD", "licenses/LICENSE"):
        assert any(name.endswith(part) for name in names), f"{part} is part of the package"
    install = ["install", "--quiet", "--no-index", "--no-deps", "--no-compile", "--target", str(tmp_path / "away")]
    subprocess.run([sys.executable, "-m", "pip", *install, str(wheel)], check=True)
    # The interpreter's own site-packages name this checkout, so the installed copy has to come first.
    program = "import clozeline, clozeline.flows, clozeline.inference.package; print(clozeline.__file__)"
    environment = {"PYTHONPATH": str(tmp_path / "away")}
    command = [sys.executable, "-P", "-c", program]
    said = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout
    assert said.strip() == str(tmp_path / "away/clozeline/__init__.py")
    assert (tmp_path / "away/bin/clozeline").is_file()
