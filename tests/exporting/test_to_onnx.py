"""Every encoder leaves training whole: parity over shapes, padding and length, then INT8.

Attention is rewritten: the graph moves no heads in memory, and has a row of its mask for each query.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import ModelProto, TensorProto, ValueInfoProto
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    BertConfig,
    MPNetConfig,
    PretrainedConfig,
)

from clozeline.encoder.families import FAMILIES, LAYOUTS
from clozeline.encoder.families.layout import TokenIds
from clozeline.exporting.forms import last_layer_of
from clozeline.exporting.graph import op_counts, read_graph, write_graph
from clozeline.exporting.parity import differences_by_output, largest_difference
from clozeline.exporting.quantization import Scheme, quantize
from clozeline.exporting.to_onnx import ATTENTION, export_onnx, head_products
from clozeline.exporting.trained import TrainedModel, open_trained
from clozeline.inference.language import HIDDEN
from clozeline.inference.open_model import MASKS_ONLY, GraphSession, padded
from clozeline.inference.tokenization import TokenizedText
from clozeline.params.model import NOT_EXPORTED
from clozeline.params.reading import read_params
from clozeline.system.errors import ArtifactError
from tests.exporting.conftest import answer
from tests.make.models import PROJECT, SHAPE, SaveTrained

PARAMS = read_params(PROJECT / "params.yaml")
# Longer than any that is compared in every model.
LENGTH = 136
# Changes to the configurations for effects that otherwise show only in larger models.
CHANGES: dict[str, dict[str, object]] = {
    "albert": {"embedding_size": 16},
    "electra": {"embedding_size": 16},
    "modernbert": {"local_attention": 16, "global_attn_every_n_layers": 2},
}
MASKED, CLASSIFIER = AutoModelForMaskedLM, AutoModelForSequenceClassification
# One model for each encoder: the packages of tests/make/models.py have every head of BERT and ModernBERT.
CASES = [
    *((family, MASKED) for family in ("albert", "bert", "electra", "roberta", "big_bird", "deberta-v3")),
    ("distilbert", CLASSIFIER),
]
# Their attention is no operator: transformers writes its products out.
UNLIKE_OTHERS = ("big_bird", "deberta-v3")
# Of our layers only the mask is shared in the graph, and only ALBERT shares weights.
ALL_LAYERS = ("albert", "bert")


def small(family: str, objective: str = "mlm", **changes: object) -> PretrainedConfig:
    """Return a small configuration of the family, as `pretrain` makes it."""
    shape = {"family": family, "size": None, "max_position_embeddings": LENGTH, **SHAPE, **changes}
    params = PARAMS.pretrain.model.model_copy(update=shape)
    config = FAMILIES[family].configure(objective, params, TokenIds(vocab_size=90, pad_id=0, cls_id=2, sep_id=3))
    config.update(CHANGES.get(family, {}) | {"num_labels": 3})
    return config


Exported = tuple[TrainedModel, Path, tuple[str, ...]]
Export = Callable[[Any], Exported]


@pytest.fixture
def export(save_trained: SaveTrained, tmp_path: Path, operators_made_once: None) -> Export:
    """`export(model)` saves, opens and exports a model of transformers."""

    def run(model: Any) -> Exported:
        trained, path = open_trained(save_trained(model)), tmp_path / "model.onnx"
        return trained, path, tuple(export_onnx(trained, PARAMS.export.opset, path))

    return run


@pytest.mark.parametrize(("family", "head"), CASES)
def test_the_graph_computes_what_the_model_computes(family: str, head: Any, export: Export, tmp_path: Path) -> None:
    """Batches have 1, 3 and 17 texts of up to 2, 7, 128 and `max_length` tokens; all but the longest are padded."""
    exported = export(head.from_config(small(family, **({} if family in ALL_LAYERS else {"num_hidden_layers": 1}))))
    assert largest_difference(*exported) < 1e-5
    trained, path, inputs = exported
    graph = read_graph(path)
    assert (MASKS_ONLY in inputs) == (head is MASKED and family not in UNLIKE_OTHERS)
    assert ("token_type_ids" in inputs) == (family in ("albert", "bert", "electra"))
    assert trained.max_length == LENGTH, "RoBERTa's position table has rows that no token uses"
    num_operators = 0 if family in UNLIKE_OTHERS else trained.model.config.num_hidden_layers
    assert op_counts(graph)[ATTENTION] == num_operators
    if num_operators:
        turned = [[*it.attribute[0].ints] for it in graph.graph.node if it.op_type == "Transpose"]
        assert [0, 2, 1, 3] not in turned, "heads stay side by side"
    if head is MASKED:
        assert_int8_is_close_with_all_weights_and_the_table_in_8_bits(trained, graph, inputs, tmp_path / "int8.onnx")
    if family == "distilbert":
        assert last_layer_of(trained) == "first position"
        product = [it.output[0] for it in graph.graph.node if it.name.startswith("model.encoder.layers.0.mlp.output")]
        graph.graph.output.append(ValueInfoProto(name=product[-1]))
        ones = np.ones((1, 7), dtype=np.int64)
        assert answer(graph, dict.fromkeys(inputs, ones), product[-1]).shape[1] == 1, "of 7 tokens"


def assert_int8_is_close_with_all_weights_and_the_table_in_8_bits(
    trained: TrainedModel, graph: ModelProto, inputs: tuple[str, ...], int8: Path
) -> None:
    head = head_products(trained, graph)
    quantized = quantize(graph, Scheme(weights="int7", embeddings=True), exact=head)
    write_graph(quantized.model, int8)
    differences = differences_by_output(trained, int8, inputs, batch_sizes=(3,))
    assert differences.pop(HIDDEN) < 0.1  # its values are several times as large as those of the other outputs
    assert max(differences.values()) < 0.05
    assert len(head) == 1
    assert quantized.num_matmuls >= trained.model.config.num_hidden_layers * 6 + 1
    matrices = [tensor for tensor in quantized.model.graph.initializer if len(tensor.dims) == 2]
    in_floats = {tensor.name for tensor in matrices if tensor.data_type != TensorProto.INT8}
    readers = [node for node in quantized.model.graph.node if in_floats & set(node.input)]
    assert not {"MatMul", "Gather"} & {node.op_type for node in readers if node.name not in head}
    # The vocabulary is there once: the head reads the embedding's own tensor.
    assert sum(trained.model.config.vocab_size in tensor.dims for tensor in matrices) == 1
    assert op_counts(quantized.model)["MatMul"] == op_counts(graph)["MatMul"] - quantized.num_matmuls


ONE_LAYER = SHAPE | {"num_hidden_layers": 1, "vocab_size": 90}


@pytest.mark.parametrize(
    ("config", "max_length"),
    [
        (BertConfig(**ONE_LAYER, max_position_embeddings=3), 3),
        (MPNetConfig(**ONE_LAYER, max_position_embeddings=32, pad_token_id=1), 30),
    ],
)
def test_models_with_few_positions_and_of_a_family_that_is_only_imported_are_exported_too(
    config: PretrainedConfig, max_length: int, export: Export
) -> None:
    exported = export(AutoModelForMaskedLM.from_config(config))
    assert exported[0].max_length == max_length
    assert largest_difference(*exported) < 1e-5


def test_every_other_family_is_traced_like_a_relative_or_refused_with_the_reason(save_trained: SaveTrained) -> None:
    """A model of ours is what its architecture and the shape of its head say."""
    assert set(FAMILIES) == {family for family, _ in CASES} | {"modernbert", "xlm-roberta", "deberta-v2", *NOT_EXPORTED}
    assert small("deberta-v2").model_type == small("deberta-v3").model_type
    own, kin = LAYOUTS["xlm-roberta"], LAYOUTS["roberta"]
    configs = small("xlm-roberta"), small("roberta")
    assert own.architecture(configs[0]) == kin.architecture(configs[1])
    for kind, row in own.heads.items():
        assert row.shape(configs[0]) == kin.heads[kind].shape(configs[1])
    for family in NOT_EXPORTED:
        folder = save_trained(AutoModelForMaskedLM.from_config(small(family)))
        with pytest.raises(ArtifactError, match=f"model_type {family} cannot be exported to ONNX"):
            open_trained(folder)


@pytest.mark.parametrize("family", ["modernbert", "big_bird"])
def test_the_graph_gives_the_predictions_of_the_model(family: str, export: Export) -> None:
    exported = export(AutoModelForCausalLM.from_config(small(family, "clm", num_hidden_layers=1)))
    trained, path, inputs = exported
    assert trained.task == "text-generation"
    assert largest_difference(*exported) < 1e-5
    # The prediction is that of the last token that is no padding, whatever else is in the batch.
    opened = GraphSession(path, input_names=inputs, num_threads=1)
    texts = [TokenizedText(np.array(ids), ()) for ids in ([2, 10, 11], [2, 10, 11, 12, 13, 14, 15])]
    (alone_BV,) = opened.run(padded(texts, [0], 0), "logits")
    (together_BV,) = opened.run(padded(texts, [0, 1], 0), "logits")
    np.testing.assert_allclose(together_BV[0], alone_BV[0], atol=1e-5)
    assert np.abs(together_BV[1] - together_BV[0]).max() > 1e-3


def test_the_graph_of_modernbert_computes_what_the_model_computes_on_the_longest_row(export: Export) -> None:
    """Traced on a short one; beside a text of half its length, padded. Weights as after training: attention that is
    nearly a mean would hide a wrong window.
    """
    model = AutoModelForMaskedLM.from_config(small("modernbert", max_position_embeddings=2048, num_attention_heads=1))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter += torch.randn_like(parameter) * 0.15
    exported = export(model)
    assert exported[0].max_length == 2048
    assert largest_difference(*exported, batch_sizes=(2,)) <= 1e-4
