"""A trained model as an fp32 ONNX graph, through optimum.

Shapes: B texts, L tokens, H hidden, C classes or tags.
"""

import logging
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from onnx import ModelProto, helper, version_converter
from optimum.exporters.onnx import export
from optimum.exporters.tasks import TasksManager
from torch import Tensor, nn
from torch.jit import TracerWarning  # type: ignore[attr-defined]  # public, but missing in __all__
from transformers import PreTrainedModel

from clozeline.artifacts.manifest import LastLayer, Task
from clozeline.exporting.at_masks import add_default, answering_at_masks
from clozeline.exporting.attention import fuse_attention
from clozeline.exporting.graph import absorb_graph, write_graph
from clozeline.exporting.likeliest import add_likeliest
from clozeline.exporting.sizes import outline, settle_sizes
from clozeline.exporting.trained import TrainedModel
from clozeline.tasks.pooling import mean_of_tokens


class Embeds(nn.Module):
    """An encoder without a head: `sentence_embedding` [B, H] alone."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.encoder = model
        self.config = model.config

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> dict[str, Tensor]:
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        return {"sentence_embedding": mean_of_tokens(self.encoder(**inputs).last_hidden_state, attention_mask)}


def export_onnx(trained: TrainedModel, opset: int, path: Path) -> list[str]:
    """Write the graph of `trained` to `path`; returns the names of its inputs.

    A masked language model is written as `at_masks.AnswersAtMasks`, with the likeliest tokens of each mask beside
    (`likeliest`); an encoder without a head as `Embeds`; others as they are: a classifier gives `logits` [B, C], a
    tagger `logits` [B, L, C], question answering `start_logits` and `end_logits` [B, L]. Where the last layer is
    computed says `last_layer_of`. Sizes are settled (`sizes`), and attention is one operator where `opset` has it
    (`attention`).
    """
    constructor = TasksManager.get_exporter_config_constructor(
        # What a family takes is the same for every task, but optimum does not list every task of every family.
        "onnx",
        model=trained.model,
        task="feature-extraction",
        model_type=trained.family,
        library_name="transformers",
    )
    module, config_class = _EXPORTED[trained.task](trained, constructor.func)
    config = config_class(trained.model.config, task="feature-extraction")
    is_pruned = last_layer_of(trained) == "first position"
    with last_layer_at(trained.model, FirstPosition()) if is_pruned else nullcontext():
        inputs = _export(module, config, min(opset, _HIGHEST), path, min(trained.max_length, _EXAMPLE_TOKENS))
    graph = _converted(absorb_graph(path), opset)
    if trained.task == "fill-mask":
        add_default(graph)
        add_likeliest(graph, trained.model.config.vocab_size)
    settle_sizes(graph)
    fuse_attention(graph)
    write_graph(graph, path)
    return inputs


def last_layer_of(trained: TrainedModel) -> LastLayer:
    """Where the last layer of the graph is computed: at no more positions than are read, if the family allows it."""
    if not can_choose(trained.model):
        return "every position"
    if trained.task == "fill-mask":
        return "masked positions"
    reads_first = trained.task == "text-classification" and reads_first_position(trained.model)
    return "first position" if reads_first else "every position"


def head_products(trained: TrainedModel, graph: ModelProto) -> list[str]:
    """Names of the graph's MatMuls that belong to the head, but for the one that names the vocabulary.

    They are small, and run for a few rows only; their errors are in every logit. On the default encoder, 7-bit weights
    in this one layer alone changed 2.6 % of the likeliest words.
    """
    if trained.task == "feature-extraction":
        return []
    in_base_model = f"/{trained.model.base_model_prefix}/"
    products = [node.name for node in graph.graph.node if node.op_type == "MatMul" and in_base_model not in node.name]
    return products[:-1] if trained.task == "fill-mask" else products


def _giving(stock: Any, outputs: Mapping[str, dict[int, str]]) -> Any:
    """The family's export configuration, with these outputs."""
    # A class statement would need to know its parent before the model is known.
    return type("OutputsConfig", (stock,), {"outputs": property(lambda config: dict(outputs))})


_OF_TEXT, _OF_TOKENS = {0: "batch"}, {0: "batch", 1: "length"}
_EXPORTED: Mapping[Task, Callable[[TrainedModel, Any], tuple[nn.Module, Any]]] = MappingProxyType(
    {
        "fill-mask": answering_at_masks,
        "feature-extraction": lambda trained, stock: (
            Embeds(trained.model),
            _giving(stock, {"sentence_embedding": _OF_TEXT}),
        ),
        "text-classification": lambda trained, stock: (trained.model, _giving(stock, {"logits": _OF_TEXT})),
        "token-classification": lambda trained, stock: (trained.model, _giving(stock, {"logits": _OF_TOKENS})),
        "question-answering": lambda trained, stock: (
            trained.model,
            _giving(stock, {"start_logits": _OF_TOKENS, "end_logits": _OF_TOKENS}),
        ),
    }
)
"""The module whose graph is written, and the class of its export configuration."""


_HIGHEST = 20
"""Opset that the exporter of torch 2.13 under optimum writes."""


_EXAMPLE_TOKENS = 16
"""Of the texts that are traced: optimum's own number, but where a model reads fewer."""


def _export(model: nn.Module, config: Any, opset: int, path: Path, num_tokens: int) -> list[str]:
    logging.getLogger("optimum").setLevel(logging.WARNING)
    with warnings.catch_warnings():
        # optimum 0.1.0 calls the TorchScript exporter, which torch 2.13 still has and calls legacy.
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"optimum\.exporters|torch\.onnx")
        # Branches on shapes are traced once; the parity check runs other shapes than the trace.
        warnings.filterwarnings("ignore", category=TracerWarning)
        # Folding would store the transposed vocabulary head beside the embedding it is tied to.
        shapes = {"sequence_length": num_tokens}
        inputs, _ = export(model, config, path, opset=opset, do_constant_folding=False, input_shapes=shapes)
    return cast(list[str], inputs)


def _converted(model: ModelProto, opset: int) -> ModelProto:
    """The same in `opset`, if that is higher than its own."""
    if opset <= model.opset_import[0].version:
        return model
    # Weights are too many to pass them through the converter, which does not look at them.
    converted = version_converter.convert_version(outline(model), opset)
    assert [tensor.name for tensor in converted.graph.initializer] == [t.name for t in model.graph.initializer]
    converted.graph.ClearField("initializer")
    converted.graph.initializer.extend(model.graph.initializer)
    # Shapes, which the exporter leaves out: they would be others once sizes are settled.
    converted.graph.ClearField("value_info")
    converted.ir_version = helper.find_min_ir_version_for(converted.opset_import)
    return converted
