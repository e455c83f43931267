"""Graph files: their content, including branches; invalid graphs are not written."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from clozeline.exporting import graph
from clozeline.exporting.graph import (
    absorb_graph,
    declare,
    drop_unread,
    op_counts,
    read_graph,
    remove_graph,
    size_of,
    write_graph,
)
from clozeline.records.package import TensorSpec


@pytest.fixture
def model() -> onnx.ModelProto:
    """Model with a product, an If node with another product in one branch, and an unread node."""
    weight = numpy_helper.from_array(np.eye(3, dtype=np.float32), "W")
    unread = numpy_helper.from_array(np.ones(3, dtype=np.float32), "unread")

    def branch(name: str, operator: str) -> onnx.GraphProto:
        node = helper.make_node(operator, ["product", "W"], [name])
        return helper.make_graph([node], name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, 3])])

    nodes = [
        helper.make_node("Neg", ["unread"], ["dead"]),
        helper.make_node("MatMul", ["x", "W"], ["product"]),
        helper.make_node("If", ["flag"], ["y"], then_branch=branch("sum", "Add"), else_branch=branch("more", "MatMul")),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 3]),
        helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", "made_up_name"])]
    graph = helper.make_graph(nodes, "test", inputs, outputs, [weight, unread])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_operators_inside_branches_are_counted(model: onnx.ModelProto) -> None:
    assert op_counts(model)["MatMul"] == 2


def test_unread_nodes_are_dropped_and_those_read_by_a_branch_are_kept(model: onnx.ModelProto) -> None:
    drop_unread(model.graph)
    assert [tensor.name for tensor in model.graph.initializer] == ["W"]
    assert "Neg" not in op_counts(model)


def test_outputs_declare_their_shape(model: onnx.ModelProto) -> None:
    declare(model, [TensorSpec(name="y", dtype="float32", shape=("batch", 3), meaning="a test")])
    axes = model.graph.output[0].type.tensor_type.shape.dim
    assert [axis.dim_param or axis.dim_value for axis in axes] == ["batch", 3]


def test_weights_too_large_for_one_file_survive_a_round_trip_through_external_data(
    model: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = numpy_helper.from_array(np.arange(9000, dtype=np.float32).reshape(3, 3000), "large")
    model.graph.initializer.append(large)
    before = model.SerializeToString(deterministic=True)
    monkeypatch.setattr(graph, "MAX_PROTOBUF_BYTES", 30_000)
    path, data = tmp_path / "model.onnx", tmp_path / "model.onnx.data"
    write_graph(model, path)
    assert data.stat().st_size >= 36_000
    assert data.stat().st_mode == path.stat().st_mode, "readers of the graph can read its weights"
    assert size_of(path) == path.stat().st_size + data.stat().st_size
    assert model.SerializeToString(deterministic=True) == before
    assert read_graph(path).SerializeToString(deterministic=True) == before
    written = path.read_bytes(), data.read_bytes()
    write_graph(model, path)
    assert (path.read_bytes(), data.read_bytes()) == written
    assert absorb_graph(path).SerializeToString(deterministic=True) == before
    assert not data.exists()
    write_graph(model, path)
    monkeypatch.undo()
    write_graph(model, path)
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]
    remove_graph(path)
    assert list(tmp_path.iterdir()) == []


def test_an_invalid_graph_is_not_written(model: onnx.ModelProto, tmp_path: Path) -> None:
    model.graph.node[1].input[1] = "nowhere"
    with pytest.raises(onnx.checker.ValidationError):
        write_graph(model, tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()
