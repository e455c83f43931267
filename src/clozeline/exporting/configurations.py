"""Export configuration of each family for optimum: inputs and outputs of its graph, their dynamic axes, an example.

optimum's `TasksManager` registers them and looks them up by family and task.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from optimum.exporters.base import ExporterConfig
from optimum.exporters.tasks import TasksManager
from optimum.utils import DummyInputGenerator, DummyTextInputGenerator, NormalizedTextConfig
from torch import Tensor
from transformers import PretrainedConfig

from clozeline.artifacts.export.manifest import Task, TensorSpec
from clozeline.encoder.own_config import OWN_MODEL_TYPE
from clozeline.inference.model_kinds import MODEL_KINDS, ModelKind, kind_of
from clozeline.inference.session import MASKS_ONLY

BACKEND = "clozeline"
"""Name of our optimum backend; `onnx` belongs to optimum-onnx, which may be installed too."""

Axes = Mapping[str, Mapping[int, str]]
"""Dynamic axes of each tensor, with their names."""
_NONE: Mapping[int, str] = MappingProxyType({})
_TOKENS: Mapping[int, str] = MappingProxyType({0: "batch", 1: "length"})


class _Switch(DummyInputGenerator):  # type: ignore[misc]  # optimum has no types
    """Example input for `MASKS_ONLY`."""

    SUPPORTED_INPUT_NAMES = (MASKS_ONLY,)

    def __init__(self, task: str, normalized_config: NormalizedTextConfig, **shapes: int) -> None:
        pass

    def generate(self, input_name: str, framework: str = "pt", **types: str) -> Tensor:
        switch: Tensor = self.constant_tensor([1], value=1, dtype=torch.bool, framework=framework)
        return switch


class OfText(ExporterConfig):  # type: ignore[misc]  # optimum has no types
    """Configuration of a family that runs on our own encoder and has no token types."""

    kind: ModelKind
    computed: Sequence[TensorSpec]
    """Outputs, as `forms` describes them."""
    NORMALIZED_CONFIG_CLASS = NormalizedTextConfig
    DUMMY_INPUT_GENERATOR_CLASSES = (DummyTextInputGenerator, _Switch)
    takes_positions = True
    """Whether the last layer can be computed at some positions only."""
    takes_types = False

    @property
    def inputs(self) -> Axes:
        names = ["input_ids", "attention_mask"]
        if self.takes_types and self._config.type_vocab_size:
            names.append("token_type_ids")
        switch = {MASKS_ONLY: _NONE} if self.takes_positions and self.kind.fills_masks else {}
        return dict.fromkeys(names, _TOKENS) | switch

    @property
    def outputs(self) -> Axes:
        return {spec.name: dict(_named(spec)) for spec in self.computed}


class OfPairs(OfText):
    """Configuration of a family on our own encoder that tells the texts of a pair apart by token types."""

    takes_types = True


class OfWholeText(OfText):
    """Configuration of a family that runs on transformers' classes, and of your own encoder."""

    takes_positions = False


class OfWholePairs(OfWholeText):
    takes_types = True


FAMILIES: Mapping[str, type[OfText]] = MappingProxyType(
    {
        "albert": OfPairs,
        "bert": OfPairs,
        "big_bird": OfWholeText,
        OWN_MODEL_TYPE: OfWholeText,
        "deberta-v2": OfWholePairs,
        "distilbert": OfText,
        "electra": OfPairs,
        "modernbert": OfText,
        "modernbert-decoder": OfText,
        "mpnet": OfWholeText,
        "roberta": OfText,
        "xlm-roberta": OfText,
    }
)
"""Configuration of each family, keyed by `model_type`."""


def configuration_of(family: str, task: Task, config: PretrainedConfig, computed: Sequence[TensorSpec] = ()) -> Any:
    """Return the configuration that is registered for the family, otherwise the one in FAMILIES.

    `computed`: outputs of the graph.

    Raises:
        KeyError: the family is in neither.
    """
    register = TasksManager.create_register(BACKEND)
    for name, of_family in FAMILIES.items():
        register(name, *map(_known_to_optimum, MODEL_KINDS))(of_family)
    constructor = TasksManager.get_exporter_config_constructor(
        BACKEND, model_type=family, task=_known_to_optimum(task), library_name="transformers"
    )
    configuration = constructor(config)
    configuration.kind, configuration.computed = kind_of(task), computed
    return configuration


def _named(spec: TensorSpec) -> Iterator[tuple[int, str]]:
    return ((place, size) for place, size in enumerate(spec.shape) if isinstance(size, str))


def _known_to_optimum(task: Task) -> str:
    """Return `task` if optimum has a task of this name, because it registers no other; else one that it has."""
    return task if task in TasksManager.get_all_tasks() else "feature-extraction"
