"""A new version of an import is tried against the champion on the user's answers, and held without them."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from clozeline.inference.package import load
from clozeline.orchestration.import_items import built_in_items
from clozeline.orchestration.items_file import write_items
from clozeline.orchestration.release import decide
from clozeline.orchestration.trials import PackageTrials
from clozeline.params.delivery import ImportParams
from clozeline.params.reading import read_params
from clozeline.records.finetune.scored_items import HeldOut
from clozeline.records.package import FILES, ExportMetrics, package_sha256, read_manifest, record_of
from clozeline.records.package_metrics import PackageMetrics
from clozeline.registry.decisions import Decision
from clozeline.registry.publishing import Publisher
from clozeline.system.workspace import Workspace
from clozeline.tracking.mlflow import experiment_id, prepare
from tests.make.models import PROJECT
from tests.make.packages import write_embedder
from tests.make.projects import EXPORT

NAME, PACKAGE = "clozeline-mine", "dist/mine"
TEXTS = [f"return the {word} of {one} {other}" for word in ("list", "file") for one in "abcde" for other in "vwxyz"]
BUILT_IN = built_in_items("feature-extraction", reads_pairs=False)
PLAIN = [HeldOut(text=text) for text in TEXTS]
LABELLED = "`clozeline import --labelled FILE`"


def write_noisy_embedder(folder: Path, noise: float) -> None:
    """Write the embedder of the tests, with some noise in its table."""
    write_embedder(folder)
    graph = onnx.load(folder / FILES.fp32)
    (table,) = (one for one in graph.graph.initializer if one.name == "embeddings")
    weights = numpy_helper.to_array(table)
    shift = noise * np.random.default_rng(1).normal(size=weights.shape)
    table.CopyFrom(numpy_helper.from_array((weights + shift).astype(np.float32), table.name))
    onnx.save(graph, folder / FILES.fp32)
    manifest = read_manifest(folder)
    files = {**manifest.files, FILES.fp32: record_of(folder / FILES.fp32)}
    (folder / FILES.manifest).write_text(manifest.model_copy(update={"files": files}).model_dump_json())


def pairs_scored_by(package: Path) -> list[HeldOut]:
    vectors_TH = load(package, precision="fp32").embed(TEXTS)
    scores = (vectors_TH * vectors_TH[::-1]).sum(axis=1)
    both = zip(TEXTS, TEXTS[::-1], scores, strict=True)
    return [HeldOut(text=one, second=other, score=float(score)) for one, other, score in both]


@dataclass(frozen=True)
class Imports:
    """A project that imports a sentence encoder again and again."""

    root: Path
    publisher: Publisher
    run_id: str

    def decided(self, noise: float, items: Sequence[HeldOut]) -> Decision:
        """Register a package whose table has this noise, and decide about it."""
        shutil.rmtree(self.root / PACKAGE, ignore_errors=True)
        write_noisy_embedder(self.root / PACKAGE, noise)
        write_items(self.root / "imports/mine.jsonl", items)
        entry = ImportParams(
            model="m", revision=None, task="feature-extraction", pooling="mean", prompts={}, default_prompt=None,
            max_length=16, reads_pairs=False, items="imports/mine.jsonl", sha256={},
        )  # fmt: skip
        params = read_params(PROJECT / "params.yaml").model_copy(update={"imports": {"mine": entry}})
        sha256 = package_sha256(self.root / PACKAGE)
        stored = self.root / "work/mlflow/artifacts" / sha256
        shutil.copytree(self.root / PACKAGE, stored / "artifacts/package")
        version = self.publisher.registry.register(
            NAME, source=stored.as_uri(), run_id=self.run_id, package_sha256=sha256, description=""
        )
        figures = PackageMetrics(quality=None, export=ExportMetrics.model_validate(EXPORT))
        return decide(
            self.publisher, version, params.release, figures, PackageTrials(Workspace(self.root), params, "mine")
        )


@pytest.fixture
def imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Imports:
    workspace = Workspace(tmp_path)
    for name, value in workspace.defaults().items():
        monkeypatch.setenv(name, value)
    address = workspace.defaults()["MLFLOW_TRACKING_URI"]
    (tmp_path / "dvc.lock").write_text("schema: '2.0'\nstages: {}\n")
    client = prepare(address)
    run_id = client.create_run(experiment_id(client, address)).info.run_id
    return Imports(tmp_path, Publisher(address), run_id)


def test_a_better_import_replaces_the_champion_and_no_other_does(imports: Imports, tmp_path: Path) -> None:
    write_noisy_embedder(tmp_path / "best", 0.0)
    scored = pairs_scored_by(tmp_path / "best")
    assert imports.decided(0.3, scored).outcome == "promoted"
    better = imports.decided(0.0, scored)
    assert (better.outcome, better.champion_before) == ("promoted", "1")
    assert better.trial is not None
    assert (better.trial.metric, better.trial.num_items) == ("Spearman correlation", len(TEXTS))
    for items in (BUILT_IN, PLAIN):
        without = imports.decided(0.1 + len(items) / 1e4, items)
        assert (without.outcome, LABELLED in without.reason) == ("held", True), without.reason
    worse = imports.decided(9.0, scored)
    assert (worse.outcome, worse.champion_before) == ("refused", "2")
    assert "import another model or commit" in worse.reason
