"""Export of a trained model to an fp32 ONNX graph by torch's exporter.

optimum's `TasksManager` registers the configurations here and looks them up by family and task: inputs and outputs of
the graph, their dynamic axes, an example.
"""

import logging
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from onnx import ModelProto
from onnxscript.optimizer import optimize_ir
from optimum.exporters.base import ExporterConfig
from optimum.exporters.tasks import TasksManager
from optimum.utils import DummyInputGenerator, DummyTextInputGenerator, NormalizedTextConfig
from torch import Tensor, nn
from transformers import PretrainedConfig

from clozeline.encoder.own import OWN_MODEL_TYPE
from clozeline.exporting.attention import settle_attention
from clozeline.exporting.forms import Exported, add_likeliest, form_of
from clozeline.exporting.graph import make_plain, name_activations, name_axes, strip, weight_of, write_graph
from clozeline.exporting.trained import TrainedModel
from clozeline.inference.open_model import MASKS_ONLY
from clozeline.inference.package import MODEL_KINDS, ModelKind, kind_of
from clozeline.records.package import Task, TensorSpec

BACKEND = "clozeline"
"""Name of our optimum backend; `onnx` belongs to optimum-onnx, which may be installed too."""

Axes = Mapping[str, Mapping[int, str]]
"""Dynamic axes of each tensor, with their names."""
_NONE: Mapping[int, str] = MappingProxyType({})
_TOKENS: Mapping[int, str] = MappingProxyType({0: "batch", 1: "length"})

_EXAMPLE_TOKENS = 16
"""Length of the traced texts in tokens, unless the model reads fewer."""


class _Switch(DummyInputGenerator):  # type: ignore[misc]  # optimum has no types
    """Example input for `MASKS_ONLY`."""

    SUPPORTED_INPUT_NAMES = (MASKS_ONLY,)

    def __init__(self, task: str, normalized_config: NormalizedTextConfig, **shapes: int) -> None:
        pass

    def generate(self, input_name: str, framework: str = "pt", **types: str) -> Tensor:
        switch: Tensor = self.constant_tensor([1], value=1, dtype=torch.bool, framework=framework)
        return switch


class Takes(NamedTuple):
    """Optional inputs of the graphs of a family."""

    types: bool
    """Token types, which tell the texts of a pair apart."""
    positions: bool
    """`MASKS_ONLY`: families on our own encoder can compute the last layer at some positions only."""


class Configuration(ExporterConfig):  # type: ignore[misc]  # optimum has no types
    """Inputs and outputs of the graph of one kind of model."""

    kind: ModelKind
    computed: Sequence[TensorSpec]
    """Outputs, as `forms` describes them."""
    takes = Takes(types=False, positions=False)
    NORMALIZED_CONFIG_CLASS = NormalizedTextConfig
    DUMMY_INPUT_GENERATOR_CLASSES = (DummyTextInputGenerator, _Switch)

    @property
    def inputs(self) -> Axes:
        names = ["input_ids", "attention_mask"]
        if self.takes.types and self._config.type_vocab_size:
            names.append("token_type_ids")
        switch = {MASKS_ONLY: _NONE} if self.takes.positions and self.kind.fills_masks else {}
        return dict.fromkeys(names, _TOKENS) | switch

    @property
    def outputs(self) -> Axes:
        return {
            spec.name: {place: size for place, size in enumerate(spec.shape) if isinstance(size, str)}
            for spec in self.computed
        }


FAMILIES: Mapping[str, Takes] = {
    "albert": Takes(types=True, positions=True),
    "bert": Takes(types=True, positions=True),
    "big_bird": Takes(types=False, positions=False),
    OWN_MODEL_TYPE: Takes(types=False, positions=False),
    "deberta-v2": Takes(types=True, positions=False),
    "distilbert": Takes(types=False, positions=True),
    "electra": Takes(types=True, positions=True),
    "modernbert": Takes(types=False, positions=True),
    "modernbert-decoder": Takes(types=False, positions=True),
    "mpnet": Takes(types=False, positions=False),
    "roberta": Takes(types=False, positions=True),
    "xlm-roberta": Takes(types=False, positions=True),
}
"""Families that can be exported, by `model_type`: on our own encoder, on transformers' classes, or on your code."""


def configuration_of(family: str, task: Task, config: PretrainedConfig, computed: Sequence[TensorSpec] = ()) -> Any:
    """Return the configuration that is registered for the family, otherwise that of a family in FAMILIES.

    `computed`: outputs of the graph.

    Raises:
        KeyError: the family is in neither.
    """
    register = TasksManager.create_register(BACKEND)
    for name in FAMILIES:
        register(name, *map(_known_to_optimum, MODEL_KINDS))(Configuration)
    constructor = TasksManager.get_exporter_config_constructor(
        BACKEND, model_type=family, task=_known_to_optimum(task), library_name="transformers"
    )
    configuration = constructor(config)
    configuration.kind, configuration.computed = kind_of(task), computed
    configuration.takes = FAMILIES.get(family, configuration.takes)
    return configuration


def _known_to_optimum(task: Task) -> str:
    """Return `task` if optimum has a task of this name, because it registers no other; else one that it has."""
    return task if task in TasksManager.get_all_tasks() else "feature-extraction"


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
    encoder = next(name for name, module in trained.model.named_modules() if module is trained.model.base_model)
    of_head = [name for name, weight in weights.items() if not weight.startswith(f"model.{encoder}.")]
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
            dynamic_shapes={
                name: dict.fromkeys(axes, torch.export.Dim.DYNAMIC) for name, axes in configuration.inputs.items()
            },
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


def _quiet() -> None:
    """Silence the exporter, which warns of each missing torchvision operator, and the optimizer's log."""
    for name in ("torch.onnx", "onnxscript", "onnx_ir"):
        logging.getLogger(name).setLevel(logging.ERROR)
