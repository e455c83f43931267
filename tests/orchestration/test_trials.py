"""A candidate is tried against the champion on the same items, and not without an item that both can answer."""

import hashlib
import math
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
from clozeline.orchestration.trials import IncomparableError, PackageTrials, TextLosses, TrialItems, losses_of, try_both
from clozeline.params.delivery import ImportParams
from clozeline.params.reading import read_params
from clozeline.records.finetune.scored_items import TEST_FILE, HeldOut, write_test_items
from clozeline.records.package import FILES, read_manifest, record_of
from clozeline.records.record import NATS_PER_BYTE
from clozeline.system.workspace import Workspace
from tests.conftest import PROJECT
from tests.make import packages

Write = Callable[[Path], None]
TEXTS = [f"return the {word} of {other}" for word in ("list", "file") for other in "abcdefghijklmnop"]
UNLABELLED = [HeldOut(text=text) for text in TEXTS]
LABELLED = "`clozeline import --labelled FILE`"


def reweighted(write: Write, folder: Path, change: Callable[[np.ndarray], np.ndarray] = np.asarray) -> Path:
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


@pytest.fixture
def items(tmp_path: Path) -> TrialItems:
    (tmp_path / "model").mkdir()
    pq.write_table(pa.table({"text": TEXTS}), tmp_path / "validation.parquet")
    return TrialItems(tmp_path, "validation.parquet", f"model/{TEST_FILE}", most=1_000, longest=32)


def labelled(labels: Sequence[str]) -> list[HeldOut]:
    return [HeldOut(text=text, right=(one,)) for text, one in zip(TEXTS, labels, strict=True)]


def test_a_model_compared_with_itself_is_not_better_and_perplexities_are_per_token_of_the_champion(
    items: TrialItems, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = reweighted(packages.write_encoder, tmp_path / "encoder")
    found = try_both(package, package, items)
    assert (found.metric, found.num_items) == (NATS_PER_BYTE, len(TEXTS))
    assert found.difference == found.low == found.high == 0
    assert found.items_sha256 == hashlib.sha256((tmp_path / "validation.parquet").read_bytes()).hexdigest()
    assert found.as_perplexity_ratio(found.difference) == 1
    few = TrialItems(tmp_path, items.validation_text, items.test_items, most=7, longest=32)
    assert try_both(package, package, few).num_items == 7
    of_each = (TextLosses(np.ones(2), np.full(2, 50), num_tokens, num_tokens) for num_tokens in (10, 5))
    monkeypatch.setattr(trials, "losses_of", lambda *_, **__: next(of_each))
    assert try_both(package, package, items).champion_bytes_per_token == 20


def test_the_better_language_model_is_found_on_the_same_text(items: TrialItems, tmp_path: Path) -> None:
    package = reweighted(packages.write_completer, tmp_path / "package")
    sharper = reweighted(packages.write_completer, tmp_path / "sharper", lambda weights: 3.0 * weights)
    found, back = try_both(sharper, package, items), try_both(package, sharper, items)
    assert (found.metric, found.num_items) == (NATS_PER_BYTE, len(TEXTS))
    assert found.low < found.difference < found.high
    assert found.low > 0 or found.high < 0
    assert (back.low, back.high) == pytest.approx((-found.high, -found.low))


def test_the_better_embedder_is_found_on_scored_pairs(items: TrialItems, tmp_path: Path) -> None:
    noise = np.random.default_rng(1)
    embedder = reweighted(packages.write_embedder, tmp_path / "embedder")
    noisy = reweighted(
        packages.write_embedder, tmp_path / "noisy", lambda table: table + noise.normal(size=table.shape)
    )
    vectors_TH = load(embedder, precision="fp32").embed(TEXTS)
    pairs = zip(TEXTS, TEXTS[::-1], (vectors_TH * vectors_TH[::-1]).sum(axis=1), strict=True)
    scored = [HeldOut(text=one, second=other, score=float(score)) for one, other, score in pairs]
    write_test_items(tmp_path / "model", scored)
    found = try_both(embedder, noisy, items)
    assert (found.metric, found.num_items, found.candidate) == ("Spearman correlation", len(TEXTS), pytest.approx(1))
    assert 0 < found.low <= found.difference <= found.high


@pytest.mark.parametrize("is_causal", [False, True])
def test_the_loss_is_over_every_token_masked_once_or_given_those_before(tmp_path: Path, is_causal: bool) -> None:
    write = packages.write_completer if is_causal else packages.write_encoder
    model, text = load(reweighted(write, tmp_path / "package"), precision="fp32"), "return the list of files"
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
    model = load(reweighted(packages.write_encoder, tmp_path / "encoder"), precision="fp32")
    long = "return the list of files " * 9
    assert losses_of(model, [long], longest=16).num_targets == len(model.tokenizer.ids_of(long))
    known, unknown = (losses_of(model, [text], longest=16) for text in ("the list", "the \u4e2d\u6587"))
    assert known.num_targets == known.num_tokens
    assert unknown.num_targets < unknown.num_tokens
    (nats,) = losses_of(model, ["\u4e2d\u6587"], longest=16).nats_T
    assert nats == pytest.approx(6 * math.log(256)), "each byte of an unknown token costs ln 256 nats"


def test_classifiers_are_compared_on_the_test_items_one_by_one(items: TrialItems, tmp_path: Path) -> None:
    package = reweighted(packages.write_classifier, tmp_path / "classifier")
    other = reweighted(packages.write_classifier, tmp_path / "other", lambda weights: -1.0 * weights)
    found = load(package, precision="fp32").classify(TEXTS)
    answers = [max(labels, key=lambda one: one.score).label for labels in found]
    write_test_items(tmp_path / "model", labelled(answers))
    sha256 = hashlib.sha256((tmp_path / "model" / TEST_FILE).read_bytes()).hexdigest()
    found = try_both(package, other, items)
    assert (found.metric, found.candidate, found.num_items) == ("accuracy", 1.0, len(TEXTS))
    assert 0 < found.low <= found.difference <= found.high
    assert (found.items, found.items_sha256) == ("model/test_items.jsonl", sha256)
    write_test_items(tmp_path / "model", labelled(["a new label", *answers[1:]]))
    missed = try_both(package, package, items)
    assert missed.candidate == missed.champion == pytest.approx(1 - 1 / len(TEXTS)), "a new label counts as missed"


def test_models_without_common_items_are_not_compared(items: TrialItems, tmp_path: Path) -> None:
    encoder, classifier, embedder = (
        reweighted(write, tmp_path / write.__name__)
        for write in (packages.write_encoder, packages.write_classifier, packages.write_embedder)
    )
    write_test_items(tmp_path / "model", labelled(["nobody knows"] * len(TEXTS)))
    with pytest.raises(IncomparableError, match="cannot be measured on the same items"):
        try_both(encoder, classifier, items)
    with pytest.raises(IncomparableError, match="no right answer"):
        try_both(classifier, classifier, items)
    write_test_items(tmp_path / "model", UNLABELLED)
    with pytest.raises(IncomparableError, match=LABELLED):
        try_both(embedder, embedder, items)
    pq.write_table(pa.table({"text": ["\u4e2d\u6587"]}), tmp_path / "validation.parquet")
    with pytest.raises(IncomparableError, match="a text without a token that both models know"):
        try_both(encoder, encoder, items)


def test_the_built_in_items_of_an_import_decide_nothing(tmp_path: Path) -> None:
    entry = ImportParams.model_validate(
        {"model": "m", "revision": None, "task": "feature-extraction", "pooling": "mean", "prompts": {}}
        | {"default_prompt": None, "max_length": 16, "reads_pairs": False, "items": "imports/mine.jsonl", "sha256": {}}
    )
    params = read_params(PROJECT / "params.yaml").model_copy(update={"imports": {"mine": entry}})
    mine = PackageTrials(Workspace(tmp_path), params, "mine")
    write_items(tmp_path / entry.items, UNLABELLED)
    assert mine._test_items() == entry.items
    write_items(tmp_path / entry.items, built_in_items("feature-extraction", reads_pairs=False))
    with pytest.raises(IncomparableError, match=LABELLED):
        mine._test_items()
