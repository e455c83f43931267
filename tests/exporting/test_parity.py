"""The parity check sees a wrong graph: other weights, another pooling, a size kept from the traced example."""

import itertools
import math
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from onnx import helper, numpy_helper
from safetensors.torch import load_file, save_file

from clozeline.encoder.layers import mean_of_tokens
from clozeline.exporting import parity
from clozeline.exporting.graph import read_graph, write_graph
from clozeline.exporting.parity import BATCH_SIZES, largest_difference
from clozeline.exporting.to_onnx import export_onnx
from clozeline.exporting.trained import TrainedModel, open_trained
from clozeline.inference.open_model import MASKS_ONLY, GraphSession, TextBatch
from clozeline.system.errors import ArtifactError


@pytest.fixture(scope="module")
def trained(small_encoder: Path) -> TrainedModel:
    return open_trained(small_encoder)


@pytest.fixture(scope="module")
def exported(trained: TrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("parity") / "model.onnx"
    export_onnx(trained, 23, path)
    return path


@pytest.fixture
def graph(exported: Path, tmp_path: Path) -> Path:
    """Graph that a test may change."""
    return Path(shutil.copy(exported, tmp_path))


def difference(trained: TrainedModel, graph: Path) -> float:
    return largest_difference(trained, graph, ("input_ids", "attention_mask", MASKS_ONLY))


def test_a_correct_graph_differs_only_by_rounding(trained: TrainedModel, graph: Path) -> None:
    assert difference(trained, graph) < 1e-6


def test_batches_of_1_3_and_17_texts_of_every_length_are_compared(
    trained: TrainedModel, graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: dict[tuple[int, ...], TextBatch] = {}
    run = GraphSession.run

    def watched(session: GraphSession, batch: TextBatch, *outputs: str) -> object:
        compared[batch.input_ids_BL.shape] = batch
        return run(session, batch, *outputs)

    monkeypatch.setattr(GraphSession, "run", watched)
    difference(trained, graph)
    assert set(compared) == set(itertools.product((1, 3, 17), (2, 7, trained.max_length)))
    for (num_texts, length), batch in compared.items():
        assert (batch.attention_mask_BL.sum(axis=1) < length).any() == (num_texts > 1)


def reading(trained: TrainedModel, max_length: int) -> Any:
    config = trained.model.config
    shape = SimpleNamespace(vocab_size=config.vocab_size, num_attention_heads=12)
    return SimpleNamespace(tokenizer=trained.tokenizer, max_length=max_length, model=SimpleNamespace(config=shape))


@pytest.mark.parametrize(("max_length", "num_texts"), [(512, 17), (1147, 17), (8192, 3)])
def test_lengths_include_128_tokens_and_only_rows_too_long_for_memory_run_in_smaller_batches(
    trained: TrainedModel, max_length: int, num_texts: int
) -> None:
    shapes = {batch.input_ids_BL.shape for batch in parity._batches(reading(trained, max_length), BATCH_SIZES, False)}
    assert {(17, 2), (17, 7), (1, 128), (3, 128), (17, 128), (3, max_length)} <= shapes
    assert max(shape[0] for shape in shapes if shape[1] == max_length) == num_texts


def test_parity_holds_if_the_trained_model_runs_row_by_row(
    trained: TrainedModel, graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parity, "_MAX_LOGITS", 1)
    assert difference(trained, graph) < 1e-6


def test_nan_from_the_model_and_nan_from_the_graph_raise_different_errors(
    small_encoder: Path, graph: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(small_encoder, tmp_path / "damaged"))
    weights = load_file(folder / "model.safetensors")
    weights["head.dense.weight"].fill_(3e38)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ArtifactError, match="logits is not finite"):
        difference(open_trained(folder), graph)


def test_a_graph_with_one_wrong_weight_fails_parity(trained: TrainedModel, graph: Path) -> None:
    model = read_graph(graph)
    weight = next(tensor for tensor in model.graph.initializer if tensor.name.endswith(".head.dense.weight"))
    weight.CopyFrom(numpy_helper.from_array(1.1 * numpy_helper.to_array(weight), weight.name))
    write_graph(model, graph)
    assert difference(trained, graph) > 1e-4


def test_a_graph_that_returns_other_tokens_fails_parity(trained: TrainedModel, graph: Path) -> None:
    model = read_graph(graph)
    node = next(node for node in model.graph.node if node.name == "top_ids")
    node.attribute.append(helper.make_attribute("largest", 0))
    write_graph(model, graph)
    assert difference(trained, graph) > 1e-4


def test_scores_that_are_not_probabilities_are_detected(trained: TrainedModel, graph: Path) -> None:
    model = read_graph(graph)
    node = next(node for node in model.graph.node if node.name == "top/probabilities")
    node.CopyFrom(helper.make_node("Identity", list(node.input), list(node.output)))
    write_graph(model, graph)
    assert difference(trained, graph) > 1e-4


def test_an_embedding_that_averages_padding_fails_parity(
    trained: TrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mean_of_all(hidden_BLH: torch.Tensor, attention_mask_BL: torch.Tensor) -> torch.Tensor:
        return mean_of_tokens(hidden_BLH, torch.ones_like(attention_mask_BL))

    monkeypatch.setattr("clozeline.exporting.forms.mean_of_tokens", mean_of_all)
    export_onnx(trained, 23, tmp_path / "model.onnx")
    assert difference(trained, tmp_path / "model.onnx") > 1e-3


def test_a_graph_that_gives_nan_for_some_token_is_detected(trained: TrainedModel, graph: Path) -> None:
    """The first texts do not have that token: the NaN comes after valid numbers."""
    model = read_graph(graph)
    table = next(tensor for tensor in model.graph.initializer if list(tensor.dims) == [90, 32])
    rows = numpy_helper.to_array(table).copy()
    rows[50] = np.nan
    model.graph.initializer.append(numpy_helper.from_array(rows, "looked up"))
    lookup = next(node for node in model.graph.node if node.op_type == "Gather" and node.input[0] == table.name)
    lookup.input[0] = "looked up"
    write_graph(model, graph)
    assert math.isnan(difference(trained, graph))


def test_exporting_does_not_change_the_trained_model(trained: TrainedModel, graph: Path) -> None:
    input_ids = torch.tensor([[2, 7, 4, 9, 3]])
    with torch.inference_mode():
        assert trained.model(input_ids=input_ids).logits.shape == (1, 5, 90)
    assert not trained.model.training
