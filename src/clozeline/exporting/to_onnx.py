"""A trained model as an fp32 ONNX graph, by torch's exporter, as optimum's `TasksManager` says."""

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
from clozeline.exporting.configurations import configuration_of
from clozeline.exporting.forms import Exported
from clozeline.exporting.graph import add_default, name_axes, write_graph
from clozeline.exporting.likeliest import add_likeliest
from clozeline.exporting.plain import make_plain, name_activations, strip, weight_of
from clozeline.exporting.trained import TrainedModel
from clozeline.inference.model_kinds import Axes

_EXAMPLE_TOKENS = 16
"""Of the texts that are traced, but where a model reads fewer."""


def export_onnx(trained: TrainedModel, opset: int, path: Path) -> list[str]:
    """Write the graph of `trained` to `path`; returns the names of its inputs.

    What it takes and gives is registered (`configurations`); what is computed of it says `forms`. A masked language
    model has the likeliest tokens of each mask beside (`likeliest`).

    Raises:
        KeyError: nothing is registered for the family.
    """
    configuration = configuration_of(trained.family, trained.task, trained.model.config)
    graph = _traced(Exported(trained, tuple(configuration.outputs)), configuration, trained.max_length, opset)
    make_plain(graph)
    settle_attention(graph)
    name_activations(graph)
    strip(graph)
    name_axes(graph.graph.input, configuration.inputs)
    add_default(graph)
    if trained.answers.fills_masks:
        add_likeliest(graph, trained.model.config.vocab_size)
    write_graph(graph, path)
    return list(configuration.inputs)


def head_products(trained: TrainedModel, graph: ModelProto) -> list[str]:
    """Names of the graph's MatMuls by the head's weights, but for the one that names the vocabulary.

    They are small, and run for a few rows only; their errors are in every logit. On the default encoder, 7-bit weights
    in this one layer alone changed 2.6 % of the likeliest words.
    """
    if trained.answers.head == "feature-extraction":
        return []
    weights = weight_of(graph)
    encoder = f"model.{_name_of(trained.model, trained.model.base_model)}."
    of_head = [name for name, weight in weights.items() if not weight.startswith(encoder)]
    return of_head[:-1] if trained.answers.fills_masks else of_head


def _traced(module: nn.Module, configuration: Any, max_length: int, opset: int) -> ModelProto:
    example = configuration.generate_dummy_inputs(sequence_length=min(max_length, _EXAMPLE_TOKENS))
    _quiet()
    with warnings.catch_warnings():
        # torch 2.13 copies a tree of inputs in a way that it calls deprecated itself.
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
    # A weight that is stored turned would have no name any more, and a tied table would be in the file twice.
    optimize_ir(program.model, should_fold=lambda node: False if node.op_type == "Transpose" else None)
    graph: ModelProto = program.model_proto
    return graph


def _dynamic(inputs: Axes) -> dict[str, dict[int, Any]]:
    return {name: dict.fromkeys(axes, torch.export.Dim.DYNAMIC) for name, axes in inputs.items()}


def _quiet() -> None:
    """The exporter says of each operator of torchvision that it is not installed, and the optimizer what it leaves."""
    for name in ("torch.onnx", "onnxscript"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _name_of(model: nn.Module, part: nn.Module) -> str:
    names: Iterator[str] = (name for name, module in model.named_modules() if module is part)
    return next(names)
