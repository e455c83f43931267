"""The parity check sees a wrong graph: other weights, another pooling, a size kept from the traced example."""

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from onnx import ModelProto, helper, numpy_helper
from safetensors.torch import load_file, save_file

from clozeline.encoder.layers import mean_of_tokens
from clozeline.exporting import parity
from clozeline.exporting.graph import read_graph, write_graph
from clozeline.exporting.to_onnx import export_onnx
from clozeline.exporting.trained import TrainedModel, open_trained
from clozeline.inference.open_model import MASKS_ONLY
from clozeline.records.package import FILES
from clozeline.system.errors import ArtifactError


@pytest.fixture(scope="module")
def trained(small_encoder: Path) -> TrainedModel:
    return open_trained(small_encoder)


@pytest.fixture
def graph(encoder_package: Path, tmp_path: Path) -> Path:
    """Graph that a test may change."""
    return Path(shutil.copy(encoder_package / FILES.fp32, tmp_path))


def difference(trained: TrainedModel, graph: Path) -> float:
    return parity.largest_difference(trained, graph, ("input_ids", "attention_mask", MASKS_ONLY))


def test_a_correct_graph_differs_only_by_rounding(
    trained: TrainedModel, graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert difference(trained, graph) < 1e-6
    monkeypatch.setattr(parity, "_MAX_LOGITS", 1)  # the trained model runs row by row
    assert difference(trained, graph) < 1e-6


@pytest.mark.parametrize(("max_length", "num_texts"), [(1147, 17), (8192, 3)])
def test_lengths_include_128_tokens_and_only_rows_too_long_for_memory_run_in_smaller_batches(
    trained: TrainedModel, max_length: int, num_texts: int
) -> None:
    config = SimpleNamespace(vocab_size=90, num_attention_heads=12)
    model = SimpleNamespace(config=config)
    large: Any = SimpleNamespace(tokenizer=trained.tokenizer, max_length=max_length, model=model)
    made = list(parity._batches(large, parity.BATCH_SIZES, False))
    shapes = {batch.input_ids_BL.shape for batch in made}
    assert {(17, 2), (17, 7), (1, 128), (3, 128), (17, 128), (3, max_length)} <= shapes
    assert max(shape[0] for shape in shapes if shape[1] == max_length) == num_texts
    for batch in made:
        num_texts, length = batch.input_ids_BL.shape
        assert (batch.attention_mask_BL.sum(axis=1) < length).any() == (num_texts > 1), "all but one are padded"


def test_a_model_that_itself_gives_nan_is_refused(small_encoder: Path, graph: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(small_encoder, tmp_path / "damaged"))
    weights = load_file(folder / "model.safetensors")
    weights["head.dense.weight"].fill_(3e38)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ArtifactError, match="logits is not finite"):
        difference(open_trained(folder), graph)


def change_a_weight(model: ModelProto) -> None:
    weight = next(tensor for tensor in model.graph.initializer if tensor.name.endswith(".head.dense.weight"))
    weight.CopyFrom(numpy_helper.from_array(1.1 * numpy_helper.to_array(weight), weight.name))


def return_other_tokens(model: ModelProto) -> None:
    node = next(node for node in model.graph.node if node.name == "top_ids")
    node.attribute.append(helper.make_attribute("largest", 0))


def give_nan_for_a_token(model: ModelProto) -> None:
    """The first texts do not have that token: the NaN comes after valid numbers."""
    table = next(tensor for tensor in model.graph.initializer if list(tensor.dims) == [90, 32])
    rows = numpy_helper.to_array(table).copy()
    rows[50] = np.nan
    model.graph.initializer.append(numpy_helper.from_array(rows, "looked up"))
    lookup = next(node for node in model.graph.node if node.op_type == "Gather" and node.input[0] == table.name)
    lookup.input[0] = "looked up"


@pytest.mark.parametrize("change", [change_a_weight, return_other_tokens, give_nan_for_a_token])
def test_a_wrong_graph_fails_parity(trained: TrainedModel, graph: Path, change: Callable[[ModelProto], None]) -> None:
    model = read_graph(graph)
    change(model)
    write_graph(model, graph)
    found = difference(trained, graph)
    assert math.isnan(found) if change is give_nan_for_a_token else found > 1e-4


def test_an_embedding_that_averages_padding_fails_parity_and_exporting_leaves_the_model_as_it_was(
    trained: TrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mean_of_all(hidden_BLH: torch.Tensor, attention_mask_BL: torch.Tensor) -> torch.Tensor:
        return mean_of_tokens(hidden_BLH, torch.ones_like(attention_mask_BL))

    monkeypatch.setattr("clozeline.exporting.forms.mean_of_tokens", mean_of_all)
    export_onnx(trained, 23, tmp_path / "model.onnx")
    assert difference(trained, tmp_path / "model.onnx") > 1e-3
    with torch.inference_mode():
        assert trained.model(input_ids=torch.tensor([[2, 7, 4, 9, 3]])).logits.shape == (1, 5, 90)
    assert not trained.model.training
