"""A new version of an import is tried against the champion on the user's answers, and held without them."""

import hashlib
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from onnx import numpy_helper

from clozeline.inference.completer import Completer
from clozeline.inference.language import OpenEncoder
from clozeline.inference.package import load
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
from tests.make.models import LABELS, PROJECT
from tests.make.packages import write_classifier, write_completer, write_embedder, write_encoder
from tests.make.projects import EXPORT

NAME, PACKAGE = "clozeline-mine", "dist/mine"
TEXTS = [f"return the {word} of {one} {other}" for word in ("list", "file") for one in "abcde" for other in "vwxyz"]
BUILT_IN = built_in_items("feature-extraction", reads_pairs=False)
PLAIN = [HeldOut(text=text) for text in TEXTS]
LABELLED = "`clozeline import --labelled FILE`"


def reweighted(package: Path, folder: Path, change: Callable[[np.ndarray], np.ndarray]) -> Path:
    """Copy of a package whose first table of weights is changed."""
    shutil.copytree(package, folder)
    graph = onnx.load(folder / FILES.fp32)
    table = next(tensor for tensor in graph.graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT)
    weights = change(numpy_helper.to_array(table)).astype(np.float32)
    table.CopyFrom(numpy_helper.from_array(weights, table.name))
    onnx.save(graph, folder / FILES.fp32)
    manifest = read_manifest(folder)
    files = {**manifest.files, FILES.fp32: record_of(folder / FILES.fp32)}
    (folder / FILES.manifest).write_text(manifest.model_copy(update={"files": files}).model_dump_json())
    return folder


def noisy_embedder(folder: Path, noise: float) -> Path:
    """Write the embedder of the tests, with some noise in its table."""
    write_embedder(folder.with_name("plain"))
    draw = np.random.default_rng(1)
    return reweighted(folder.with_name("plain"), folder, lambda table: table + noise * draw.normal(size=table.shape))


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
        shutil.rmtree((self.root / PACKAGE).parent, ignore_errors=True)
        noisy_embedder(self.root / PACKAGE, noise)
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
        tried = PackageTrials(Workspace(self.root), params, "mine")
        ExportMetrics.model_validate(EXPORT).write(self.root / "metrics" / tried.metric_paths.export)
        return decide(self.publisher, version, tried)


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
    noisy_embedder(tmp_path / "best", 0.0)
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


VALIDATION_TEXTS = [f"return the {word} of {other}" for word in ("list", "file") for other in "abcdefghijklmnop"]


def items_of(root: Path, most: int = 1_000) -> TrialItems:
    return TrialItems(
        root=root, validation_text="validation.parquet", test_items=f"model/{TEST_FILE}", most=most, longest=32
    )


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "validation.parquet"
    pq.write_table(pa.table({"text": VALIDATION_TEXTS}), path)
    return path


def labelled(root: Path, labels: Sequence[str]) -> Path:
    (root / "model").mkdir(exist_ok=True)
    write_test_items(
        root / "model", [HeldOut(text=text, right=(one,)) for text, one in zip(VALIDATION_TEXTS, labels, strict=True)]
    )
    return root / "model" / "test_items.jsonl"


def encoder_in(folder: Path) -> Path:
    write_encoder(folder)
    return folder


def classifier_in(folder: Path) -> Path:
    write_classifier(folder)
    return folder


def answers_of(package: Path) -> list[str]:
    """Labels that the classifier gives to TEXTS."""
    found = load(package, precision="fp32").classify(VALIDATION_TEXTS)
    return [max(labels, key=lambda one: one.score).label for labels in found]


def test_a_model_compared_with_itself_is_not_better(texts: Path, tmp_path: Path) -> None:
    package = encoder_in(tmp_path / "encoder")
    found = try_both(package, package, items_of(tmp_path))
    assert (found.metric, found.num_items) == (NATS_PER_BYTE, len(VALIDATION_TEXTS))
    assert found.difference == found.low == found.high == 0
    assert found.items_sha256 == hashlib.sha256(texts.read_bytes()).hexdigest()
    assert found.as_perplexity_ratio(found.difference) == 1
    assert try_both(package, package, items_of(tmp_path, most=7)).num_items == 7


def test_the_better_encoder_is_found_on_the_same_text(texts: Path, tmp_path: Path) -> None:
    package = encoder_in(tmp_path / "encoder")
    sharper = reweighted(package, tmp_path / "sharper", lambda weights: 3.0 * weights)
    found = try_both(sharper, package, items_of(tmp_path))
    back = try_both(package, sharper, items_of(tmp_path))
    assert found.low < found.difference < found.high
    assert found.low > 0 or found.high < 0
    assert (back.low, back.high) == pytest.approx((-found.high, -found.low))


def test_perplexities_are_per_token_of_the_champion(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_each = (TextLosses(np.ones(2), np.full(2, 50), num_tokens, num_tokens) for num_tokens in (10, 5))
    monkeypatch.setattr("clozeline.orchestration.trials.losses_of", lambda *_, **__: next(of_each))
    package = encoder_in(tmp_path / "encoder")
    assert try_both(package, package, items_of(tmp_path)).champion_bytes_per_token == 20


def test_the_loss_is_over_every_token_masked_once(tmp_path: Path) -> None:
    model = load(encoder_in(tmp_path / "encoder"), precision="fp32")
    assert isinstance(model, OpenEncoder)
    text = "return the list of files"
    (read,) = model.tokenize([text])
    expected = 0.0
    for place in range(1, len(read) - 1):
        hidden = [other for other in range(1, len(read) - 1) if other % 7 == place % 7]
        ids_L = read.ids_L.copy()
        ids_L[hidden] = model.manifest.special_tokens.mask_id
        (logits_MV,) = model.rows([type(read)(ids_L, ())], "logits")
        logits_V = logits_MV[hidden.index(place)].astype(np.float64)
        expected += math.log(np.exp(logits_V).sum()) - logits_V[read.ids_L[place]]
    losses = losses_of(model, [text], longest=32)
    assert losses.nats_T[0] == pytest.approx(expected, rel=1e-5)
    assert (losses.num_targets, losses.num_tokens, losses.bytes_T[0]) == (len(read) - 2, len(read) - 2, len(text))


def test_the_loss_of_a_causal_model_is_over_each_token_given_those_before(tmp_path: Path) -> None:
    write_completer(tmp_path / "completer")
    model = load(tmp_path / "completer", precision="fp32")
    assert isinstance(model, Completer)
    text = "return the list of files"
    (read,) = model.tokenize([text])
    expected = 0.0
    for place in range(1, len(read) - 1):
        (logits_V,) = model.rows([type(read)(read.ids_L[:place], ())], "logits")
        expected += math.log(np.exp(logits_V.astype(np.float64)).sum()) - logits_V[read.ids_L[place]]
    losses = losses_of(model, [text], longest=32)
    assert losses.nats_T[0] == pytest.approx(expected, rel=1e-5)
    assert (losses.num_targets, losses.num_tokens) == (len(read) - 2, len(read) - 2)


def test_the_better_causal_model_is_found_on_the_same_text(texts: Path, tmp_path: Path) -> None:
    write_completer(tmp_path / "completer")
    sharper = reweighted(tmp_path / "completer", tmp_path / "sharper", lambda weights: 3.0 * weights)
    found = try_both(sharper, tmp_path / "completer", items_of(tmp_path))
    assert (found.metric, found.num_items) == (NATS_PER_BYTE, len(VALIDATION_TEXTS))
    assert found.low > 0 or found.high < 0


def test_long_texts_count_in_full_and_unknown_tokens_are_charged(tmp_path: Path) -> None:
    model = load(encoder_in(tmp_path / "encoder"), precision="fp32")
    assert isinstance(model, OpenEncoder)
    long = "return the list of files " * 9
    assert losses_of(model, [long], longest=16).num_targets == len(model.tokenizer.ids_of(long))
    known, unknown = (losses_of(model, [text], longest=16) for text in ("the list", "the \u4e2d\u6587"))
    assert unknown.num_targets < unknown.num_tokens
    assert unknown.nats_T[0] > math.log(256) > 0
    (nats,) = losses_of(model, ["\u4e2d\u6587"], longest=16).nats_T
    assert nats == pytest.approx(6 * math.log(256)), "each byte of an unknown token costs ln 256 nats"
    assert known.num_targets == known.num_tokens


def test_classifiers_are_compared_on_the_test_items_one_by_one(tmp_path: Path) -> None:
    package = classifier_in(tmp_path / "classifier")
    other = reweighted(package, tmp_path / "other", lambda weights: -1.0 * weights)
    path = labelled(tmp_path, answers_of(package))
    found = try_both(package, other, items_of(tmp_path))
    assert (found.metric, found.candidate, found.num_items) == ("accuracy", 1.0, len(VALIDATION_TEXTS))
    assert 0 < found.low <= found.difference <= found.high
    assert (found.items, found.items_sha256) == (
        "model/test_items.jsonl",
        hashlib.sha256(path.read_bytes()).hexdigest(),
    )


def test_texts_without_right_answers_do_not_tell_the_better_sentence_encoder(tmp_path: Path) -> None:
    write_embedder(tmp_path / "embedder")
    (tmp_path / "model").mkdir()
    write_test_items(tmp_path / "model", [HeldOut(text=text) for text in VALIDATION_TEXTS])
    with pytest.raises(IncomparableError) as caught:
        try_both(tmp_path / "embedder", tmp_path / "embedder", items_of(tmp_path))
    assert "`clozeline import --labelled FILE`" in str(caught.value)


def test_a_label_that_is_new_counts_as_missed(tmp_path: Path) -> None:
    package = classifier_in(tmp_path / "classifier")
    known = answers_of(package)
    labelled(tmp_path, ["a new label", *known[1:]])
    found = try_both(package, package, items_of(tmp_path))
    assert found.candidate == found.champion == pytest.approx(1 - 1 / len(VALIDATION_TEXTS))


def test_models_without_common_items_are_not_compared(texts: Path, tmp_path: Path) -> None:
    encoder, classifier = encoder_in(tmp_path / "encoder"), classifier_in(tmp_path / "classifier")
    write_embedder(tmp_path / "embedder")
    with pytest.raises(IncomparableError, match="cannot be measured on the same items"):
        try_both(encoder, classifier, items_of(tmp_path))
    with pytest.raises(IncomparableError) as caught:
        try_both(classifier, classifier, items_of(tmp_path))
    assert "no model/test_items.jsonl" in str(caught.value)
    labelled(tmp_path, ["labels that", "nobody knows"] * (len(VALIDATION_TEXTS) // 2))
    assert set(LABELS).isdisjoint({"labels that", "nobody knows"})
    with pytest.raises(IncomparableError) as caught:
        try_both(classifier, classifier, items_of(tmp_path))
    assert "no right answer" in str(caught.value)
