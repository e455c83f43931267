"""Each package becomes a version once, aliases name the live version, and anyone can load a registered model."""

import json
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import httpx
import mlflow
import onnx
import pytest
from mlflow import MlflowClient

from clozeline.inference.classifier import Classifier
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
from tests.make.packages import card_in, write_answerer, write_ranker, write_tagger
from tests.serving.conftest import Serve

NAME = "clozeline-encoder"
URI = f"models:/{NAME}@champion"


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with an empty, migrated database."""
    folder = tmp_path_factory.mktemp("registry")
    Publisher(Workspace(folder).defaults()["MLFLOW_TRACKING_URI"])
    return folder


@pytest.fixture
def evidence(tmp_path: Path) -> Evidence:
    return evidence_in(tmp_path)


def evidence_in(folder: Path) -> Evidence:
    (folder / "evaluate.json").write_text('{"perplexity": 12.5}')
    files, tags = {"metrics/evaluate.json": folder / "evaluate.json"}, {"mlflow.source.git.commit": "abc"}
    return Evidence(files=files, tags=tags, card="- perplexity: 12.5")


@pytest.fixture(scope="module")
def template(empty: Path, tmp_path_factory: pytest.TempPathFactory, encoder_package: Path) -> Path:
    """A project whose encoder is the champion. A copy keeps the version: its database finds the copied files."""
    root = shutil.copytree(empty, tmp_path_factory.mktemp("released") / "project")
    published = promoted(
        Publisher(Workspace(root).defaults()["MLFLOW_TRACKING_URI"]), encoder_package, evidence_in(root)
    )
    assert published.version == "1"
    return root


def with_environment(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    for name, value in workspace.defaults().items():
        monkeypatch.setenv(name, value)
    return workspace


@pytest.fixture
def workspace(empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    return with_environment(Workspace(shutil.copytree(empty, tmp_path / "project")), monkeypatch)


@pytest.fixture
def publisher(workspace: Workspace) -> Publisher:
    return Publisher(workspace.defaults()["MLFLOW_TRACKING_URI"])


@pytest.fixture
def released(template: Path, monkeypatch: pytest.MonkeyPatch) -> Publisher:
    """The project with a champion, which a test may only read."""
    return Publisher(with_environment(Workspace(template), monkeypatch).defaults()["MLFLOW_TRACKING_URI"])


@pytest.fixture
def copied(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A copy of the project with a champion, which a test may change."""
    return with_environment(Workspace(shutil.copytree(template, tmp_path / "project")), monkeypatch)


def other_package(package: Path, folder: Path) -> Path:
    """Return a package of the same model with another identity."""
    shutil.copytree(package, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["versions"]["numpy"] = str(folder)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def promoted(publisher: Publisher, package: Path, evidence: Evidence) -> Registered:
    version = publisher.publish(package, NAME, evidence)
    publisher.registry.nominate(version)
    publisher.registry.promote(version)
    return version


def test_each_package_becomes_a_version_once(
    publisher: Publisher, encoder_package: Path, evidence: Evidence, tmp_path: Path
) -> None:
    first = publisher.publish(encoder_package, NAME, evidence)
    assert publisher.publish(encoder_package, NAME, evidence) == first
    assert first.package_sha256 == package_sha256(encoder_package)
    second = publisher.publish(other_package(encoder_package, tmp_path / "other"), NAME, evidence)
    assert (first.version, second.version) == ("1", "2")


def test_a_version_carries_its_evidence_and_the_model_card_with_the_section_of_its_release(
    released: Publisher, encoder_package: Path
) -> None:
    version = released.registry.version(NAME, "1")
    with released.evidence(version) as folder:
        assert (folder / "metrics/evaluate.json").read_text() == '{"perplexity": 12.5}'
        card = card_in(folder)
    assert released.registry.run_of(version).data.tags["mlflow.source.git.commit"] == "abc"
    assert card.sections == {**card_in(encoder_package).sections, "Release": "- perplexity: 12.5"}
    described = MlflowClient(mlflow.get_tracking_uri()).get_model_version(NAME, "1").description
    assert described.endswith("\n\n- perplexity: 12.5")


def test_the_runs_of_killed_releases_of_this_workspace_are_closed(publisher: Publisher, workspace: Workspace) -> None:
    address = workspace.defaults()["MLFLOW_TRACKING_URI"]
    client = MlflowClient(address)
    experiment = experiment_id(client, address)
    ours, theirs = (client.create_run(experiment, tags={WORKSPACE: name}).info.run_id for name in ("ours", "theirs"))
    publisher.close_killed("ours")
    assert (client.get_run(ours).info.status, client.get_run(theirs).info.status) == ("KILLED", "RUNNING")


def test_missing_evidence_is_reported(
    publisher: Publisher, workspace: Workspace, encoder_package: Path, evidence: Evidence
) -> None:
    version = publisher.publish(encoder_package, NAME, evidence)
    shutil.rmtree(workspace.mlflow / "artifacts" / version.run_id)
    told = f"the evidence files of {NAME} version 1 are gone"
    with pytest.raises(ArtifactError, match=told), publisher.evidence(version):
        pass


def test_importing_the_registry_loads_no_mlflow() -> None:
    code = "import clozeline.registry, sys; sys.exit('mlflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.usefixtures("released")
def test_an_encoder_fills_and_embeds_through_mlflow(encoder_package: Path) -> None:
    model = mlflow.pyfunc.load_model(URI)
    masked, plain = model.predict(["the [MASK] reads a sentence", "the encoder"])
    assert [len(words) for words in masked["masks"]] == [5]
    assert {"score", "token", "token_str", "sequence"} == set(masked["masks"][0][0])
    assert plain["masks"] == []
    assert len(plain["embedding"]) == read_manifest(encoder_package).hidden_size
    (three,) = model.predict(["a [MASK]"], params={"top_k": 3})
    assert len(three["masks"][0]) == 3


def test_a_classifier_labels_through_mlflow(publisher: Publisher, classifier_package: Path, evidence: Evidence) -> None:
    version = publisher.publish(classifier_package, "clozeline-library", evidence)
    model = mlflow.pyfunc.load_model(f"models:/clozeline-library/{version.version}")
    (answer,) = model.predict(["returns a tensor"])
    assert {label["label"] for label in answer["labels"]} == set(read_manifest(classifier_package).labels)


def test_a_registered_model_needs_no_torch_and_no_pickle(released: Publisher, template: Path) -> None:
    workspace = Workspace(template)
    code = (
        "import mlflow, sys\n"
        "for name in ('torch', 'transformers', 'optimum', 'prefect', 'dvc'): sys.modules[name] = None\n"
        f"mlflow.pyfunc.load_model('models:/{NAME}@champion').predict(['a [MASK]'])\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, **workspace.defaults()})
    names = [file.name for file in (workspace.mlflow / "artifacts").rglob("model/**/*")]
    assert not [name for name in names if name.endswith((".pkl", ".pickle", ".bin"))]


@pytest.mark.usefixtures("released")
def test_a_registered_model_carries_the_wheel_that_its_requirements_install(template: Path, tmp_path: Path) -> None:
    """`mlflow models serve` installs them, and no index has Clozeline."""
    (requirements,) = (Workspace(template).mlflow / "artifacts").rglob("model/requirements.txt")
    wheel, mlflow_itself = requirements.read_text().splitlines()
    assert (requirements.parent / wheel).name == write_wheel(tmp_path).name
    assert (requirements.parent / wheel).read_bytes() == write_wheel(tmp_path).read_bytes()
    assert mlflow_itself.startswith("mlflow-skinny==")


PLANTED = "import pathlib; pathlib.Path({marker!r}).write_text('ran')\n"


class _Planted:
    """Object that runs code when it is unpickled."""

    def __init__(self, code: str) -> None:
        self._code = code

    def __reduce__(self) -> tuple[object, ...]:
        return exec, (self._code,)


def plant(package: Path, marker: Path) -> None:
    """Plant code that writes `marker` wherever a loader of the registered model around `package` might run code."""
    model = package.parents[1]
    code = PLANTED.format(marker=str(marker))
    (script,) = model.glob("*.py")  # the script that MLflow runs
    script.write_text(code)
    for folder in (model, package):
        for name in ("__init__.py", "sitecustomize.py", "served_model.py", "modeling.py", "conftest.py"):
            (folder / name).write_text(code)
        for name in ("python_model.pkl", "model.pkl", "pytorch_model.bin", "tokenizer.pkl"):
            (folder / name).write_bytes(pickle.dumps(_Planted(code)))
    remote = {"auto_map": {"AutoModel": "modeling.Model", "AutoTokenizer": "modeling.Tokenizer"}}
    (package / "config.json").write_text(json.dumps(remote))
    (package / "tokenizer_config.json").write_text(json.dumps(remote))


def test_code_planted_in_a_registered_model_does_not_run_in_the_server(
    publisher: Publisher, encoder_package: Path, evidence: Evidence, workspace: Workspace, tmp_path: Path
) -> None:
    promoted(publisher, encoder_package, evidence)
    uri, marker = URI, tmp_path / "marker"
    plant(models.fetch(uri, workspace).folder, marker)
    server = Serve(workspace.root, uri, "--port", "0")
    answer = httpx.post(f"{server.url()}/fill-mask", json={"inputs": "the [MASK]"}, trust_env=False)
    server.process.terminate()
    assert (answer.status_code, answer.headers["x-model-version"]) == (200, "1")
    assert server.end()[0] == 0
    load(fetch_package(uri, workspace)[0])  # with MLflow's client, as from a remote registry
    assert not marker.exists()
    loading = [sys.executable, "-c", f"import mlflow; mlflow.pyfunc.load_model({uri!r})"]
    subprocess.run(loading, check=False, capture_output=True, env={**os.environ, **workspace.defaults()})
    assert marker.read_text() == "ran"  # MLflow's own loader does run the planted code


def test_a_registered_package_that_does_not_load_fails_the_check(
    publisher: Publisher, encoder_package: Path, evidence: Evidence, workspace: Workspace
) -> None:
    version = publisher.publish(encoder_package, NAME, evidence)
    publisher.check(version, example_texts(read_manifest(encoder_package)))
    (models.fetch(f"models:/{NAME}/1").folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"tokenizer\.json"):
        publisher.check(version, example_texts(read_manifest(encoder_package)))


def test_a_uri_leads_to_the_package_folder_and_its_version(released: Publisher, template: Path) -> None:
    for uri in (URI, f"models:/{NAME}/1"):
        found = models.fetch(uri, Workspace(template))
        assert (found.version.name, found.version.version) == (NAME, "1")
        verify(found.folder, read_manifest(found.folder))
    assert models.champions(Workspace(template)) == [URI]


@pytest.mark.parametrize(
    ("uri", "error"),
    [
        (URI, ArtifactError),
        (f"models:/{NAME}/7", ArtifactError),
        ("models:/nothing", ParamsError),
    ],
)
def test_an_unregistered_model_is_refused_by_name(workspace: Workspace, uri: str, error: type[Exception]) -> None:
    with pytest.raises(error, match="models:/" if error is ParamsError else NAME):
        models.fetch(uri)


def test_without_a_registry_there_are_no_champions_and_no_registry_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert models.champions(Workspace(tmp_path)) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ask", [models.fetch, models.live_version])
def test_without_a_registry_the_error_says_where_to_look_and_none_is_created(
    ask: Callable[[str, Workspace], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(ArtifactError, match=f"no registry to find models:/{NAME}@champion") as raised:
        ask(URI, Workspace(tmp_path))
    assert str(tmp_path / "work" / "mlflow" / "mlflow.db") in raised.value.cause
    assert list(tmp_path.iterdir()) == []


def test_an_unresponsive_registry_is_a_transient_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with pytest.raises(TransientError, match="does not answer"):
        models.fetch(URI)


def change_weights(package: Path) -> None:
    """Replace the registered weights, and record the new hash in the manifest."""
    graph = onnx.load(package / "model.int8.onnx")
    weights = next(tensor for tensor in graph.graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT)
    weights.raw_data = bytes(len(weights.raw_data))
    onnx.save(graph, package / "model.int8.onnx")
    manifest = read_manifest(package)
    files = {**manifest.files, "model.int8.onnx": record_of(package / "model.int8.onnx")}
    manifest.model_copy(update={"files": files}).write(package / FILES.manifest)
    verify(package, read_manifest(package))


def flip_a_byte_of_fp32(package: Path) -> None:
    """Damage the fp32 graph and keep the manifest; INT8 is served."""
    assert read_manifest(package).served == "int8"
    graph = bytearray((package / "model.onnx").read_bytes())
    graph[len(graph) // 2] ^= 1
    (package / "model.onnx").write_bytes(graph)


@pytest.mark.parametrize("database", ["its tables", "MLflow"])
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (change_weights, f"{NAME} version 1 in .* are not those that were registered"),
        (flip_a_byte_of_fp32, r"model\.onnx is not the file that was exported"),
    ],
)
def test_a_package_that_differs_from_the_registered_one_is_refused(
    copied: Workspace, monkeypatch: pytest.MonkeyPatch, database: str, change: Callable[[Path], None], told: str
) -> None:
    change(models.fetch(URI, copied).folder)
    if database == "MLflow":
        monkeypatch.setattr(models, "package_in_own_database", lambda *asked: None)
    with pytest.raises(ArtifactError, match=told):
        models.fetch(URI, copied)


def test_mlflow_does_not_load_weights_that_were_not_registered(
    publisher: Publisher, encoder_package: Path, evidence: Evidence, workspace: Workspace
) -> None:
    promoted(publisher, encoder_package, evidence)
    package = models.fetch(URI).folder
    mlflow.pyfunc.load_model(URI)
    change_weights(package)
    with pytest.raises(ArtifactError, match=f"{NAME} version 1"):
        mlflow.pyfunc.load_model(URI)


def opened(package: Path) -> PyfuncModel:
    model = PyfuncModel()
    model.load_context(SimpleNamespace(artifacts={PACKAGE: str(package)}))
    return model


def test_a_registered_tagger_returns_entities(tmp_path: Path) -> None:
    write_tagger(tmp_path / "names")
    records = opened(tmp_path / "names").predict(None, ["open the lists of a file", "a"])
    assert [set(record) for record in records] == [{"entities"}] * 2
    assert {"entity_group", "score", "word", "start", "end"} == set(records[0]["entities"][0])


def test_a_registered_question_answerer_accepts_its_own_example(tmp_path: Path) -> None:
    write_answerer(tmp_path / "reader")
    model = opened(tmp_path / "reader")
    records = model.predict(None, example_texts(read_manifest(tmp_path / "reader")), {"top_k": 2})
    assert [len(record["answers"]) for record in records] == [2, 2]
    with pytest.raises(DataError, match="text 1 is not a JSON object with `question` and `context`"):
        model.predict(None, ['{"question": "a", "context": "b"}', "who?"])


def test_a_pair_classifier_takes_both_texts_of_each_row(tmp_path: Path) -> None:
    write_ranker(tmp_path / "ranker")
    model, ranker = opened(tmp_path / "ranker"), load(tmp_path / "ranker")
    assert isinstance(ranker, Classifier)
    asked = [example_texts(read_manifest(tmp_path / "ranker"))[0], '{"text": "open", "text_pair": "the file"}']
    given = [("What is returned?", "It returns a value."), ("open", "the file")]
    assert [record["labels"][0]["score"] for record in model.predict(None, asked)] == pytest.approx(
        [scores[0].score for scores in ranker.classify(given)]
    )
    with pytest.raises(DataError, match="text 0 is not a JSON object with `text` and `text_pair`"):
        model.predict(None, ["open the file"])


def test_the_wheel_installs_the_package_and_its_command(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path)
    install = ["install", "--quiet", "--no-index", "--no-deps", "--no-compile", "--target", str(tmp_path / "away")]
    subprocess.run([sys.executable, "-m", "pip", *install, str(wheel)], check=True)
    # The interpreter's own site-packages name this checkout, so the installed copy has to come first.
    program = "import clozeline, clozeline.flows, clozeline.inference.package; print(clozeline.__file__)"
    environment = {"PYTHONPATH": str(tmp_path / "away")}
    command = [sys.executable, "-P", "-c", program]
    said = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout
    assert said.strip() == str(tmp_path / "away/clozeline/__init__.py")
    assert (tmp_path / "away/bin/clozeline").is_file()


def test_the_same_files_give_the_same_wheel_without_compiled_ones(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one, two = (write_wheel(tmp_path / name) for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()
    names = zipfile.ZipFile(one).namelist()
    parts = {".html", *(f".dist-info/{part}" for part in ("METADATA", "WHEEL", "RECORD", "entry_points.txt"))}
    for part in (*parts, "licenses/LICENSE"):
        assert any(name.endswith(part) for name in names), f"{part} is part of the package"
    assert not [name for name in names if "__pycache__" in name]


def test_code_planted_in_a_registered_model_is_found_by_the_check_and_not_run(
    publisher: Publisher, encoder_package: Path, evidence: Evidence, tmp_path: Path
) -> None:
    version = publisher.publish(encoder_package, NAME, evidence)
    plant(models.fetch(f"models:/{NAME}/1").folder, tmp_path / "marker")
    with pytest.raises(ArtifactError, match=str(version)):
        publisher.check(version, example_texts(read_manifest(encoder_package)))
    assert not (tmp_path / "marker").exists()
