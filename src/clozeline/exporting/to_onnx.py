"""Export of a trained model to an fp32 ONNX graph by torch's exporter.

optimum's `TasksManager` registers the configurations here and looks them up by family and task: inputs and outputs of
the graph, their dynamic axes, an example.

Attention, one operator of opset 23, is rewritten to the form that ONNX Runtime accepts and computes fastest. The
exporter splits and transposes heads, [B, A, X, D], because PyTorch's function needs them so. The operator also reads
them side by side, [B, X, A × D], as the products by weights leave them, which moves nothing in memory. ONNX Runtime
also refuses a mask that has one row for all queries, which the exporter writes.

Shapes: B texts, Q queries, K keys, X queries or keys; A heads, D dimensions of a head.
"""

import logging
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnxscript.optimizer import optimize_ir
from optimum.exporters.base import ExporterConfig
from optimum.exporters.tasks import TasksManager
from optimum.utils import DummyInputGenerator, DummyTextInputGenerator, NormalizedTextConfig
from torch import Tensor, nn
from transformers import PretrainedConfig

from clozeline.encoder import families
from clozeline.encoder.own import OWN_MODEL_TYPE
from clozeline.exporting.forms import Exported, add_likeliest, form_of
from clozeline.exporting.graph import (
    drop_unread,
    inferred_axes,
    make_plain,
    name_activations,
    name_axes,
    set_nodes,
    strip,
    weight_of,
    write_graph,
)
from clozeline.exporting.trained import TrainedModel
from clozeline.inference import open_model, package
from clozeline.params.model import NOT_EXPORTED
from clozeline.records.package import Task, TensorSpec

# Name of our optimum backend; `onnx` belongs to optimum-onnx, which may be installed too.
BACKEND = "clozeline"

# Dynamic axes of each tensor, with their names.
Axes = Mapping[str, Mapping[int, str]]
_NONE: Mapping[int, str] = {}
_TOKENS: Mapping[int, str] = {0: "batch", 1: "length"}

ATTENTION = "Attention"
# Permutation from [B, X, A, D] to [B, A, X, D] and back.
_SWAPPED = [0, 2, 1, 3]

# Length of the traced texts in tokens, unless the model reads fewer.
_EXAMPLE_TOKENS = 16


class _Switch(DummyInputGenerator):  # type: ignore[misc]  # optimum has no types
    """Example input for `MASKS_ONLY`."""

    SUPPORTED_INPUT_NAMES = (open_model.MASKS_ONLY,)

    def __init__(self, task: str, normalized_config: NormalizedTextConfig, **shapes: int) -> None:
        pass

    def generate(self, input_name: str, framework: str = "pt", **types: str) -> Tensor:
        switch: Tensor = self.constant_tensor([1], value=1, dtype=torch.bool, framework=framework)
        return switch


class Configuration(ExporterConfig):  # type: ignore[misc]  # optimum has no types
    """Inputs and outputs of the graph of one kind of model."""

    kind: package.ModelKind
    computed: Sequence[TensorSpec]  # outputs, as `forms` describes them
    takes_types = False
    # Whether it can compute the last layer at some positions only, as families on our own encoder can.
    chooses_positions = False
    NORMALIZED_CONFIG_CLASS = NormalizedTextConfig
    DUMMY_INPUT_GENERATOR_CLASSES = (DummyTextInputGenerator, _Switch)

    @property
    def inputs(self) -> Axes:
        names = ["input_ids", "attention_mask"]
        if self.takes_types and self._config.type_vocab_size:
            names.append("token_type_ids")
        switch = {open_model.MASKS_ONLY: _NONE} if self.chooses_positions and self.kind.fills_masks else {}
        return dict.fromkeys(names, _TOKENS) | switch

    @property
    def outputs(self) -> Axes:
        return {
            spec.name: {place: size for place, size in enumerate(spec.shape) if isinstance(size, str)}
            for spec in self.computed
        }


_TRAINED = {
    config_class.model_type: family.takes_types
    for name, family in families.FAMILIES.items()
    for config_class in family.forms.values()
    if name not in NOT_EXPORTED
}
# `model_type` of each family that can be exported → whether its graphs take token types.
FAMILIES: Mapping[str, bool] = dict(sorted((_TRAINED | {OWN_MODEL_TYPE: False, "mpnet": False}).items()))


def configuration_of(family: str, task: Task, config: PretrainedConfig, computed: Sequence[TensorSpec] = ()) -> Any:
    """Return the configuration that is registered for the family, otherwise that of a family in FAMILIES.

    `computed`: outputs of the graph.

    Raises:
        KeyError: the family is in neither.
    """
    register = TasksManager.create_register(BACKEND)
    for name in FAMILIES:
        register(name, *map(_known_to_optimum, package.MODEL_KINDS))(Configuration)
    constructor = TasksManager.get_exporter_config_constructor(
        BACKEND, model_type=family, task=_known_to_optimum(task), library_name="transformers"
    )
    configuration = constructor(config)
    configuration.kind, configuration.computed = package.kind_of(task), computed
    configuration.takes_types, configuration.chooses_positions = FAMILIES.get(family, False), family in families.LAYOUTS
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


def settle_attention(model: ModelProto) -> None:
    """Rewrite the attention nodes in place without changing results; a graph of a lower opset has none."""
    settling = _Settling(model)
    set_nodes(model.graph, (new for node in model.graph.node for new in settling.settled(node)))
    model.graph.initializer.extend(settling.constants)
    drop_unread(model.graph)


class _Settling:
    """State of a rewrite: facts about the graph as exported, and what has been replaced so far."""

    def __init__(self, model: ModelProto) -> None:
        self._axes = inferred_axes(model)
        self._made_by = {name: node for node in model.graph.node for name in node.output}
        self._readers: defaultdict[str, list[NodeProto]] = defaultdict(list)
        for node in model.graph.node:
            for name in node.input:
                self._readers[name].append(node)
        self._replaced: set[str] = set()
        self._masks: dict[tuple[str, int | str | None], str] = {}
        self.constants: list[TensorProto] = []

    def settled(self, node: NodeProto) -> Iterator[NodeProto]:
        """Yield the nodes that replace `node`."""
        if node.op_type == ATTENTION:
            num_queries = self._axis(node.input[0], 2)
            yield from self._with_heads_together(node)
            if len(node.input) > 3 and self._axis(node.input[3], -2) == 1:
                yield from self._with_rows(node, num_queries)
            yield node
        elif not self._replaced.intersection(node.output):
            yield node

    def _with_heads_together(self, node: NodeProto) -> Iterator[NodeProto]:
        joined = self._joined(node.output[0])
        apart = [self._before_swap(name) for name in node.input[:3]]
        if not joined or not all(apart):
            return
        for place, name in enumerate(apart):
            node.input[place] = self._whole(name) or f"{name}/together"
            if node.input[place] == f"{name}/together":
                sizes = self._constant(f"{name}/sizes", [0, 0, self._width(name)])
                yield helper.make_node("Reshape", [name, sizes], [node.input[place]], name=node.input[place])
        self._replaced.add(joined)
        node.output[0] = joined
        for attribute, name in (("q_num_heads", apart[0]), ("kv_num_heads", apart[1])):
            _set(node, attribute, int(self._axis(name, 2) or 0))

    def _with_rows(self, node: NodeProto, num_queries: int | str | None) -> Iterator[NodeProto]:
        """Expand the mask to a row for each query, once for all layers with as many queries."""
        mask, own = node.input[3], f"{node.name}/mask"
        node.input[3] = self._masks.setdefault((mask, num_queries or own), own)
        if node.input[3] == own:
            one, length, sizes = self._constant(f"{own}/one", [1]), f"{own}/length", f"{own}/sizes"
            axis = 1 if node.output[0] in self._replaced else 2
            yield helper.make_node("Shape", [node.input[0]], [length], name=length, start=axis, end=axis + 1)
            yield helper.make_node("Concat", [one, one, length, one], [sizes], name=sizes, axis=0)
            yield helper.make_node("Expand", [mask, sizes], [own], name=own)

    def _axis(self, name: str, axis: int) -> int | str | None:
        axes = self._axes.get(name, ())
        return axes[axis] if len(axes) == 4 else None

    def _width(self, name: str) -> int:
        """Return A × D of a tensor [B, X, A, D]; 0 for any other shape."""
        num_heads, size = self._axis(name, 2), self._axis(name, 3)
        return num_heads * size if isinstance(num_heads, int) and isinstance(size, int) else 0

    def _before_swap(self, name: str) -> str:
        """Return the name of the [B, X, A, D] tensor that was transposed to `name` [B, A, X, D]; empty if none was."""
        node = self._made_by.get(name)
        return str(node.input[0]) if node is not None and _is_swap(node) and self._width(node.input[0]) else ""

    def _whole(self, name: str) -> str:
        """Return the name of the [B, X, A × D] tensor that was reshaped to `name` [B, X, A, D]; empty if none was."""
        node = self._made_by.get(name)
        axes = self._axes.get(node.input[0], ()) if node is not None and node.op_type == "Reshape" else ()
        return str(node.input[0]) if node is not None and len(axes) == 3 and axes[2] == self._width(name) else ""

    def _joined(self, name: str) -> str:
        """Return the name of the [B, Q, A × D] tensor that is the only use of `name` [B, A, Q, D]; empty if none is."""
        swap = self._only_reader(name)
        reshape = self._only_reader(swap.output[0]) if swap is not None and _is_swap(swap) else None
        if reshape is None or reshape.op_type != "Reshape" or len(self._axes.get(reshape.output[0], ())) != 3:
            return ""
        return str(reshape.output[0])

    def _only_reader(self, name: str) -> NodeProto | None:
        readers = self._readers[name]
        return readers[0] if len(readers) == 1 else None

    def _constant(self, name: str, sizes: list[int]) -> str:
        self.constants.append(numpy_helper.from_array(np.array(sizes, dtype=np.int64), name))
        return name


def _is_swap(node: NodeProto) -> bool:
    return node.op_type == "Transpose" and [axis for it in node.attribute for axis in it.ints] == _SWAPPED


def _set(node: NodeProto, name: str, value: int) -> None:
    kept = [attribute for attribute in node.attribute if attribute.name != name]
    node.ClearField("attribute")
    node.attribute.extend([*kept, helper.make_attribute(name, value)])
