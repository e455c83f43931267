"""Export of a trained model to an fp32 ONNX graph by torch's exporter, with the configurations of `TasksManager`."""

import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from onnx import ModelProto
from onnxscript.optimizer import optimize_ir
from torch import nn

from clozeline.exporting.attention import settle_attention
from clozeline.exporting.configurations import Axes, configuration_of
from clozeline.exporting.forms import Exported, form_of
from clozeline.exporting.graph import name_axes, write_graph
from clozeline.exporting.likeliest import add_likeliest
from clozeline.exporting.plain import make_plain, name_activations, strip, weight_of
from clozeline.exporting.trained import TrainedModel

_EXAMPLE_TOKENS = 16
"""Length of the traced texts in tokens, unless the model reads fewer."""


def export_onnx(trained: TrainedModel, opset: int, path: Path) -> list[str]:
    """Write the graph of `trained` to `path` and return the names of its inputs.

    `configurations` defines its inputs and outputs, `forms` its computation. A language model also gives the likeliest
    tokens (`likeliest`).

    Raises:
        KeyError: no configuration is registered for the family.
    """
    computed = form_of(trained).outputs(trained)
    configuration = configuration_of(trained.family, trained.task, trained.model.config, computed)
    graph = _traced(Exported(trained, tuple(configuration.outputs)), configuration, trained.max_length, opset)
    make_plain(graph)
    settle_attention(graph)
    name_activations(graph)
    strip(graph)
    name_axes(graph.graph.input, configuration.inputs)
    if trained.kind.is_language_model:
        add_likeliest(graph, trained.model.config.vocab_size, str(computed[0].shape[0]))
    write_graph(graph, path)
    return list(configuration.inputs)


def head_products(trained: TrainedModel, graph: ModelProto) -> list[str]:
    """Return the names of the MatMuls by the head's weights, except the vocabulary projection.

    They are small and run for a few rows only, but their errors reach every logit. On the default encoder, 7-bit
    weights in this one layer changed 2.6 % of the likeliest tokens.
    """
    if trained.kind.head == "feature-extraction":
        return []
    weights = weight_of(graph)
    encoder = f"model.{_name_of(trained.model, trained.model.base_model)}."
    of_head = [name for name, weight in weights.items() if not weight.startswith(encoder)]
    return of_head[:-1] if trained.kind.is_language_model else of_head


def _traced(module: nn.Module, configuration: Any, max_length: int, opset: int) -> ModelProto:
    example = configuration.generate_dummy_inputs(sequence_length=min(max_length, _EXAMPLE_TOKENS))
    _quiet()
    # Tracing with gradients costs a fifth more and gives the same bytes.
    with torch.no_grad(), warnings.catch_warnings():
        # torch 2.13 copies the tree of inputs by a call that torch itself deprecates.
        warnings.filterwarnings("ignore", category=FutureWarning, module="copyreg")
        program = torch.onnx.export(
            module.eval(),
            (),
            kwargs=example,
            input_names=list(configuration.inputs),
            output_names=list(configuration.outputs),
            dynamic_shapes=_dynamic(configuration.inputs),
            opset_version=opset,
            dynamo=True,
            optimize=False,
            verbose=False,
        )
    assert program is not None
    # Folding a Transpose would drop the weight's name and store a tied table twice.
    optimize_ir(program.model, should_fold=lambda node: False if node.op_type == "Transpose" else None)
    graph: ModelProto = program.model_proto
    return graph


def _dynamic(inputs: Axes) -> dict[str, dict[int, Any]]:
    return {name: dict.fromkeys(axes, torch.export.Dim.DYNAMIC) for name, axes in inputs.items()}


def _quiet() -> None:
    """Silence the exporter, which warns of each missing torchvision operator, and the optimizer's log."""
    for name in ("torch.onnx", "onnxscript", "onnx_ir"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _name_of(model: nn.Module, part: nn.Module) -> str:
    names: Iterator[str] = (name for name, module in model.named_modules() if module is part)
    return next(names)
