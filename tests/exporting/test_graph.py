"""Graph files and their content, branches too: invalid ones are not written, and linear layers get one form."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from clozeline.exporting import graph
from clozeline.exporting.graph import op_counts, write_graph
from clozeline.records.package import TensorSpec
from tests.exporting.conftest import answer, graph_of, node

FLOAT, BOOL = TensorProto.FLOAT, TensorProto.BOOL


def tensor(name: str, *axes: str | int | None, dtype: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, axes)


@pytest.fixture
def model() -> ModelProto:
    """Model with a product, an If node with another product in one branch, and an unread node."""
    weights = {"W": np.eye(3, dtype=np.float32), "unread": np.ones(3, dtype=np.float32)}
    branches = {
        f"{name}_branch": helper.make_graph([node(operator, "product W", name)], name, [], [tensor(name, None, 3)])
        for name, operator in {"then": "Add", "else": "MatMul"}.items()
    }
    nodes = [
        node("Neg", "unread", "dead"),
        node("MatMul", "x W", "product"),
        node("If", "flag", "y", **branches),
    ]
    constants = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    inputs = [tensor("x", "rows", 3), tensor("flag", dtype=BOOL)]
    made = helper.make_graph(nodes, "test", inputs, [tensor("y", "rows", "made_up_name")], constants)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_branches_are_counted_outputs_declare_their_shape_and_what_branches_read_is_kept(model: ModelProto) -> None:
    assert (op_counts(model)["MatMul"], op_counts(model)["Neg"]) == (2, 1)
    graph.declare(model, [TensorSpec(name="y", dtype="float32", shape=("batch", 3), meaning="a test")])
    axes = model.graph.output[0].type.tensor_type.shape.dim
    assert [axis.dim_param or axis.dim_value for axis in axes] == ["batch", 3]
    graph.drop_unread(model.graph)
    assert [tensor.name for tensor in model.graph.initializer] == ["W"]
    assert "Neg" not in op_counts(model)


def test_weights_too_large_for_one_file_survive_a_round_trip_through_external_data(
    model: ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = numpy_helper.from_array(np.arange(9000, dtype=np.float32).reshape(3, 3000), "large")
    model.graph.initializer.append(large)
    before = model.SerializeToString(deterministic=True)
    monkeypatch.setattr(graph, "MAX_PROTOBUF_BYTES", 30_000)
    path, data = tmp_path / "model.onnx", tmp_path / "model.onnx.data"
    write_graph(model, path)
    assert data.stat().st_size >= 36_000
    assert data.stat().st_mode == path.stat().st_mode, "readers of the graph can read its weights"
    assert graph.size_of(path) == path.stat().st_size + data.stat().st_size
    assert model.SerializeToString(deterministic=True) == before
    assert graph.read_graph(path).SerializeToString(deterministic=True) == before
    written = path.read_bytes(), data.read_bytes()
    write_graph(model, path)
    assert (path.read_bytes(), data.read_bytes()) == written
    assert graph.absorb_graph(path).SerializeToString(deterministic=True) == before
    assert not data.exists()
    write_graph(model, path)
    monkeypatch.undo()
    write_graph(model, path)
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]
    graph.remove_graph(path)
    assert list(tmp_path.iterdir()) == []


def test_an_invalid_graph_is_not_written(model: ModelProto, tmp_path: Path) -> None:
    model.graph.node[1].input[1] = "nowhere"
    with pytest.raises(onnx.checker.ValidationError):
        write_graph(model, tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


WEIGHT_NK = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
X = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)


def linear_layers(**attributes: object) -> ModelProto:
    """Return a graph of two linear layers that share a weight, as the exporter writes layers on two axes."""
    gemm = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 1} | attributes
    nodes = [
        node("Gemm", "x encoder.dense.weight bias", "first", **gemm),
        node("Gemm", "x encoder.dense.weight", "second", **gemm),
        node("Add", "first second", "y"),
    ]
    model = graph_of(nodes, {"x": X}, bias=np.ones(4, np.float32), **{"encoder.dense.weight": WEIGHT_NK})
    model.graph.value_info.append(tensor("first", "rows", 4))
    return model


def test_linear_layers_become_products_with_their_transposed_weight_plus_a_bias() -> None:
    """Products are named after their weights, the second with a number; an activation after the first that reads it."""
    model = linear_layers()
    graph.make_plain(model)
    assert op_counts(model) == {"Transpose": 2, "MatMul": 2, "Add": 2}
    assert graph.weight_of(model) == dict.fromkeys(("encoder.dense", "encoder.dense/2"), "encoder.dense.weight")
    np.testing.assert_allclose(answer(model, {"x": X}), 2 * X @ WEIGHT_NK.T + 1, rtol=1e-5)
    for each in model.graph.node:
        each.input[:] = ["positive" if name == "x" else name for name in each.input]
    model.graph.node.insert(0, node("Relu", "x", "positive"))
    graph.name_activations(model)
    assert [each.input[0] for each in model.graph.node if each.op_type == "MatMul"] == ["encoder.dense/input"] * 2
    np.testing.assert_allclose(answer(model, {"x": X}), 2 * np.maximum(X, 0) @ WEIGHT_NK.T + 1, rtol=1e-5)


def test_a_scaled_gemm_stays_and_source_file_names_and_intermediate_shapes_are_stripped() -> None:
    model = linear_layers(alpha=0.5)
    graph.make_plain(model)
    assert op_counts(model) == {"Gemm": 2, "Add": 1}
    for part in (model, model.graph, model.graph.node[0], model.graph.initializer[0], model.graph.input[0]):
        entry = part.metadata_props.add()
        entry.key, entry.value = "pkg.torch.onnx.stack_trace", "/home/somebody/model.py"
    graph.strip(model)
    assert b"somebody" not in model.SerializeToString()
    assert not model.graph.value_info


def test_gathers_and_slices_of_rows_count_as_lookups() -> None:
    nodes = [
        node("Gather", "table ids", "rows"),
        node("Gather", "table ids", "columns", axis=1),
        node("Gather", "other ids", "of_another"),
        node("Slice", "table zero length zero", "first_rows"),
        node("Slice", "table zero length one", "first_columns"),
        node("Transpose", "table", "turned"),
    ]
    model = graph_of(nodes, {}, zero=np.array([0]), one=np.array([1]))
    assert graph.lookups(model.graph, {"table"}) == {"rows", "first_rows"}
