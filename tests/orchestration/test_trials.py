"""A new version of an import is tried against the champion on the user's answers, and held without them."""

import hashlib
import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from onnx import numpy_helper

from clozeline.inference.package import load
from clozeline.orchestration import trials
from clozeline.orchestration.import_items import built_in_items, write_items
from clozeline.orchestration.release import decide
from clozeline.orchestration.trials import IncomparableError, PackageTrials, TextLosses, TrialItems, losses_of, try_both
from clozeline.params.delivery import ImportParams
from clozeline.params.reading import read_params
from clozeline.records.finetune.scored_items import TEST_FILE, HeldOut, write_test_items
from clozeline.records.limits import NATS_PER_BYTE
from clozeline.records.package import FILES, ExportMetrics, package_sha256, read_manifest, record_of
from clozeline.registry.decisions import Decision
from clozeline.registry.publishing import Publisher
from clozeline.system.workspace import Workspace
from clozeline.tracking.mlflow import experiment_id, prepare
from tests.make import packages
from tests.make.projects import EXPORT, PROJECT

Write = Callable[[Path], None]
TEXTS = [f"return the {word} of {other}" for word in ("list", "file") for other in "abcdefghijklmnop"]
UNLABELLED = [HeldOut(text=text) for text in TEXTS]
LABELLED = "`clozeline import --labelled FILE`"


def reweighted(write: Write, folder: Path, change: Callable[[np.ndarray], np.ndarray]) -> Path:
    """Write a package whose first table of weights is changed."""
    write(folder)
    graph = onnx.load(folder / FILES.fp32)
    table = next(tensor for tensor in graph.graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT)
    weights = change(numpy_helper.to_array(table)).astype(np.float32)
    table.CopyFrom(numpy_helper.from_array(weights, table.name))
    onnx.save(graph, folder / FILES.fp32)
    manifest = read_manifest(folder)
    files = {**manifest.files, FILES.fp32: record_of(folder / FILES.fp32)}
    (folder / FILES.manifest).write_text(manifest.model_copy(update={"files": files}).model_dump_json())
    return folder


def written(write: Write, folder: Path) -> Path:
    return reweighted(write, folder, lambda weights: weights)


def noisy_embedder(folder: Path, noise: float) -> Path:
    draw = np.random.default_rng(1)
    return reweighted(packages.write_embedder, folder, lambda table: table + noise * draw.normal(size=table.shape))


def test_a_better_import_replaces_the_champion_and_no_other_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, package = Workspace(tmp_path), tmp_path / "dist/mine"
    for name, value in workspace.defaults().items():
        monkeypatch.setenv(name, value)
    address = workspace.defaults()["MLFLOW_TRACKING_URI"]
    (tmp_path / "dvc.lock").write_text("schema: '2.0'\nstages: {}\n")
    client = prepare(address)
    run_id, publisher = client.create_run(experiment_id(client, address)).info.run_id, Publisher(address)
    entry = ImportParams(
        model="m", revision=None, task="feature-extraction", pooling="mean", prompts={}, default_prompt=None,
        max_length=16, reads_pairs=False, items="imports/mine.jsonl", sha256={},
    )  # fmt: skip
    params = read_params(PROJECT / "params.yaml").model_copy(update={"imports": {"mine": entry}})
    tried = PackageTrials(workspace, params, "mine")
    ExportMetrics.model_validate(EXPORT).write(tmp_path / "metrics" / tried.metric_paths.export)

    def decided(noise: float, items: Sequence[HeldOut]) -> Decision:
        """Register a package whose table has this noise, and decide about it."""
        shutil.rmtree(package.parent, ignore_errors=True)
        noisy_embedder(package, noise)
        write_items(tmp_path / entry.items, items)
        sha256 = package_sha256(package)
        stored = tmp_path / "work/mlflow/artifacts" / sha256
        shutil.copytree(package, stored / "artifacts/package")
        version = publisher.registry.register(
            "clozeline-mine", source=stored.as_uri(), run_id=run_id, package_sha256=sha256, description=""
        )
        return decide(publisher, version, PackageTrials(workspace, params, "mine"))

    vectors_TH = load(noisy_embedder(tmp_path / "best", 0.0), precision="fp32").embed(TEXTS)
    pairs = zip(TEXTS, TEXTS[::-1], (vectors_TH * vectors_TH[::-1]).sum(axis=1), strict=True)
    scored = [HeldOut(text=one, second=other, score=float(score)) for one, other, score in pairs]
    assert decided(0.3, scored).outcome == "promoted"
    better = decided(0.0, scored)
    assert (better.outcome, better.champion_before) == ("promoted", "1")
    assert better.trial is not None
    assert (better.trial.metric, better.trial.num_items) == ("Spearman correlation", len(TEXTS))
    for noise, items in ((0.1, built_in_items("feature-extraction", reads_pairs=False)), (0.2, UNLABELLED)):
        without = decided(noise, items)
        assert (without.outcome, LABELLED in without.reason) == ("held", True), without.reason
    worse = decided(9.0, scored)
    assert (worse.outcome, worse.champion_before) == ("refused", "2")
    assert "import another model or commit" in worse.reason


@pytest.fixture
def items(tmp_path: Path) -> TrialItems:
    (tmp_path / "model").mkdir()
    pq.write_table(pa.table({"text": TEXTS}), tmp_path / "validation.parquet")
    return TrialItems(tmp_path, "validation.parquet", f"model/{TEST_FILE}", most=1_000, longest=32)


def label(root: Path, labels: Sequence[str]) -> Path:
    given = [HeldOut(text=text, right=(one,)) for text, one in zip(TEXTS, labels, strict=True)]
    write_test_items(root / "model", given)
    return root / "model" / TEST_FILE


def answers_of(package: Path) -> list[str]:
    """Labels that the classifier gives to TEXTS."""
    found = load(package, precision="fp32").classify(TEXTS)
    return [max(labels, key=lambda one: one.score).label for labels in found]


def test_a_model_compared_with_itself_is_not_better(items: TrialItems, tmp_path: Path) -> None:
    package = written(packages.write_encoder, tmp_path / "encoder")
    found = try_both(package, package, items)
    assert (found.metric, found.num_items) == (NATS_PER_BYTE, len(TEXTS))
    assert found.difference == found.low == found.high == 0
    assert found.items_sha256 == hashlib.sha256((tmp_path / "validation.parquet").read_bytes()).hexdigest()
    assert found.as_perplexity_ratio(found.difference) == 1
    few = TrialItems(tmp_path, items.validation_text, items.test_items, most=7, longest=32)
    assert try_both(package, package, few).num_items == 7


@pytest.mark.parametrize("write", [packages.write_encoder, packages.write_completer])
def test_the_better_language_model_is_found_on_the_same_text(items: TrialItems, tmp_path: Path, write: Write) -> None:
    package = written(write, tmp_path / "package")
    sharper = reweighted(write, tmp_path / "sharper", lambda weights: 3.0 * weights)
    found, back = try_both(sharper, package, items), try_both(package, sharper, items)
    assert (found.metric, found.num_items) == (NATS_PER_BYTE, len(TEXTS))
    assert found.low < found.difference < found.high
    assert found.low > 0 or found.high < 0
    assert (back.low, back.high) == pytest.approx((-found.high, -found.low))


def test_perplexities_are_per_token_of_the_champion(
    items: TrialItems, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_each = (TextLosses(np.ones(2), np.full(2, 50), num_tokens, num_tokens) for num_tokens in (10, 5))
    monkeypatch.setattr(trials, "losses_of", lambda *_, **__: next(of_each))
    package = written(packages.write_encoder, tmp_path / "encoder")
    assert try_both(package, package, items).champion_bytes_per_token == 20


@pytest.mark.parametrize("is_causal", [False, True])
def test_the_loss_is_over_every_token_masked_once_or_given_those_before(tmp_path: Path, is_causal: bool) -> None:
    write = packages.write_completer if is_causal else packages.write_encoder
    model, text = load(written(write, tmp_path / "package"), precision="fp32"), "return the list of files"
    (read,) = model.tokenize([text])
    expected = 0.0
    for place in range(1, len(read) - 1):
        if is_causal:
            (logits_V,) = model.rows([type(read)(read.ids_L[:place], ())], "logits")
        else:
            hidden = [other for other in range(1, len(read) - 1) if other % 7 == place % 7]
            ids_L = read.ids_L.copy()
            ids_L[hidden] = model.manifest.special_tokens.mask_id
            logits_V = model.rows([type(read)(ids_L, ())], "logits")[0][hidden.index(place)]
        expected += math.log(np.exp(logits_V.astype(np.float64)).sum()) - logits_V[read.ids_L[place]]
    losses = losses_of(model, [text], longest=32)
    assert losses.nats_T[0] == pytest.approx(expected, rel=1e-5)
    assert (losses.num_targets, losses.num_tokens, losses.bytes_T[0]) == (len(read) - 2, len(read) - 2, len(text))


def test_long_texts_count_in_full_and_unknown_tokens_are_charged(tmp_path: Path) -> None:
    model = load(written(packages.write_encoder, tmp_path / "encoder"), precision="fp32")
    long = "return the list of files " * 9
    assert losses_of(model, [long], longest=16).num_targets == len(model.tokenizer.ids_of(long))
    known, unknown = (losses_of(model, [text], longest=16) for text in ("the list", "the \u4e2d\u6587"))
    assert known.num_targets == known.num_tokens
    assert unknown.num_targets < unknown.num_tokens
    (nats,) = losses_of(model, ["\u4e2d\u6587"], longest=16).nats_T
    assert nats == pytest.approx(6 * math.log(256)), "each byte of an unknown token costs ln 256 nats"


def test_classifiers_are_compared_on_the_test_items_one_by_one(items: TrialItems, tmp_path: Path) -> None:
    package = written(packages.write_classifier, tmp_path / "classifier")
    other = reweighted(packages.write_classifier, tmp_path / "other", lambda weights: -1.0 * weights)
    answers = answers_of(package)
    sha256 = hashlib.sha256(label(tmp_path, answers).read_bytes()).hexdigest()
    found = try_both(package, other, items)
    assert (found.metric, found.candidate, found.num_items) == ("accuracy", 1.0, len(TEXTS))
    assert 0 < found.low <= found.difference <= found.high
    assert (found.items, found.items_sha256) == ("model/test_items.jsonl", sha256)
    label(tmp_path, ["a new label", *answers[1:]])
    missed = try_both(package, package, items)
    assert missed.candidate == missed.champion == pytest.approx(1 - 1 / len(TEXTS)), "a new label counts as missed"


def test_models_without_common_items_are_not_compared(items: TrialItems, tmp_path: Path) -> None:
    encoder, classifier, embedder = (
        written(write, tmp_path / write.__name__)
        for write in (packages.write_encoder, packages.write_classifier, packages.write_embedder)
    )

    def told_of(candidate: Path, champion: Path) -> str:
        with pytest.raises(IncomparableError) as caught:
            try_both(candidate, champion, items)
        return str(caught.value)

    assert "cannot be measured on the same items" in told_of(encoder, classifier)
    assert "no model/test_items.jsonl" in told_of(classifier, classifier)
    label(tmp_path, ["labels that", "nobody knows"] * (len(TEXTS) // 2))
    assert set(packages.LABELS).isdisjoint({"labels that", "nobody knows"})
    assert "no right answer" in told_of(classifier, classifier)
    write_test_items(tmp_path / "model", UNLABELLED)
    assert LABELLED in told_of(embedder, embedder)
    pq.write_table(pa.table({"text": ["\u4e2d\u6587"]}), tmp_path / "validation.parquet")
    assert "a text without a token that both models know" in told_of(encoder, encoder)
    (tmp_path / "validation.parquet").unlink()
    assert "no validation.parquet" in told_of(encoder, encoder)
