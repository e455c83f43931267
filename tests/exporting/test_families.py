"""Every family of the zoo leaves training whole: parity over shapes and padding, then INT8, with a tied vocabulary."""

from pathlib import Path

import pytest
import torch
import transformers
from onnx import ModelProto, TensorProto
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, PretrainedConfig

from clozeline.exporting.graph import op_counts, read_graph, write_graph
from clozeline.exporting.parity import largest_difference
from clozeline.exporting.quantization import Scheme, quantize
from clozeline.exporting.through_optimum import export_onnx, head_products
from clozeline.exporting.trained import TrainedModel, open_trained
from clozeline.inference.session import GraphSession

SIZES = {"vocab_size": 90, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "pad_token_id": 0}
COMMON = SIZES | {"intermediate_size": 48, "max_position_embeddings": 40}
FAMILIES: dict[str, dict[str, object]] = {
    "albert": COMMON | {"embedding_size": 16},
    "bert": COMMON,
    "deberta-v2": COMMON | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "type_vocab_size": 0},
    "distilbert": {
        "vocab_size": 90,
        "dim": 32,
        "n_layers": 2,
        "n_heads": 2,
        "hidden_dim": 48,
        "max_position_embeddings": 40,
    },
    "electra": COMMON | {"embedding_size": 16},
    "modernbert": COMMON | {"reference_compile": False, "local_attention": 16, "global_attn_every_n_layers": 2},
    "roberta": COMMON,
    "xlm-roberta": COMMON,
}
SPECIALS = {"cls_token_id": 2, "bos_token_id": 2, "sep_token_id": 3, "eos_token_id": 3}


@pytest.fixture
def trained(family: str, head: type, save_trained: object) -> TrainedModel:
    torch.manual_seed(0)
    config: PretrainedConfig = transformers.AutoConfig.for_model(family, **FAMILIES[family] | SPECIALS, num_labels=3)
    return open_trained(save_trained(head.from_config(config)))


def exported(trained: TrainedModel, path: Path) -> tuple[ModelProto, tuple[str, ...]]:
    inputs = export_onnx(trained, 17, path)
    graph = read_graph(path)
    write_graph(graph, path)
    return graph, tuple(inputs)


@pytest.mark.parametrize("head", [AutoModelForMaskedLM, AutoModelForSequenceClassification])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_graph_computes_what_the_model_computes(trained: TrainedModel, tmp_path: Path) -> None:
    _, inputs = exported(trained, tmp_path / "model.onnx")
    assert largest_difference(trained, tmp_path / "model.onnx", inputs) < 1e-5


@pytest.mark.parametrize("head", [AutoModelForMaskedLM])
@pytest.mark.parametrize("family", FAMILIES)
def test_int8_opens_near_fp32_with_every_weight_and_the_table_in_8_bits(trained: TrainedModel, tmp_path: Path) -> None:
    graph, inputs = exported(trained, tmp_path / "model.onnx")
    scheme = Scheme(per_token=True, per_channel=True, reduce_range=True, embeddings=True)
    head = head_products(trained, graph)
    quantized = quantize(graph, scheme, exact=head)
    write_graph(quantized.model, tmp_path / "model.int8.onnx")
    assert largest_difference(trained, tmp_path / "model.int8.onnx", inputs) < 0.05
    assert len(head) == 1
    assert quantized.num_matmuls >= 2 * (4 if trained.family == "modernbert" else 6) + 1
    float_matrices = {tensor.name for tensor in _matrices(quantized.model) if tensor.data_type != TensorProto.INT8}
    readers = [node for node in quantized.model.graph.node if float_matrices & set(node.input)]
    assert not {"MatMul", "Gather"} & {node.op_type for node in readers if node.name not in head}
    assert len([node for node in readers if node.op_type == "Transpose"]) <= len(head)
    # The vocabulary is there once: the head reads the embedding's own tensor.
    assert sum(trained.model.config.vocab_size in t.dims for t in _matrices(quantized.model)) == 1
    assert op_counts(quantized.model)["MatMul"] == op_counts(graph)["MatMul"] - quantized.num_matmuls
    GraphSession(tmp_path / "model.int8.onnx", input_names=inputs, num_threads=1)


@pytest.mark.parametrize("head", [AutoModelForMaskedLM])
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_positions_that_a_family_never_uses_are_not_promised(trained: TrainedModel) -> None:
    assert trained.max_length == {"bert": 40, "roberta": 39}[trained.family]


def _matrices(model: ModelProto) -> list[TensorProto]:
    return [tensor for tensor in model.graph.initializer if len(tensor.dims) == 2]
