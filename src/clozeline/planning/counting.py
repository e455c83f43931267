"""Parameters of a model, counted on the model itself: built on torch's meta device, which has shapes and no numbers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from clozeline.encoder import language_model
from clozeline.encoder.detection import parts_of
from clozeline.encoder.families import Objective, TokenIds
from clozeline.encoder.language_model import LanguageModel
from clozeline.params import ModelParams

_FP32_BYTES = 4


def outline(params: ModelParams, objective: Objective, vocab_size: int) -> LanguageModel:
    """The model that `params` describe, without memory for its weights.

    Raises:
        ParamsError: the family is not known, or not made for `objective`.
    """
    with torch.device("meta"):
        return language_model.build(params, objective, TokenIds(vocab_size, 0, 2, 3), seed=0)


@dataclass(frozen=True)
class ParameterCount:
    """How many parameters a model has, and where. A tied weight is counted once, as an embedding."""

    embedding: int
    """Tables: of tokens, positions, token types."""
    body: int
    head: int
    matrices: int
    """Of all, those in matrices and tables: what the export quantizes."""
    scales: int
    """Rows of those: each gets an fp32 scale in INT8."""
    layer_matrices: int
    """Of all, those in matrices of repeated layers: what Muon steps over."""
    generator: int
    """Of all, those that only the generator of replaced-token detection has: no part of the encoder that it trains."""

    @classmethod
    def of(cls, model: LanguageModel) -> Self:
        tables = {id(module.weight): module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
        inner = {id(parameter): parameter for part in parts_of(model) for parameter in part.base_model.parameters()}
        every = {id(parameter): parameter for parameter in model.parameters()}
        of_encoder = {id(parameter) for parameter in parts_of(model)[0].parameters()}
        matrices = [parameter for parameter in every.values() if parameter.ndim == 2]
        in_layers = {id(matrix): matrix for matrix in layer_matrices(model) if id(matrix) not in tables}
        return cls(
            embedding=_size(tables),
            body=_size({key: parameter for key, parameter in inner.items() if key not in tables}),
            head=_size({key: parameter for key, parameter in every.items() if key not in inner.keys() | tables.keys()}),
            matrices=sum(matrix.numel() for matrix in matrices),
            scales=sum(len(matrix) for matrix in matrices),
            layer_matrices=_size(in_layers),
            generator=_size({key: parameter for key, parameter in every.items() if key not in of_encoder}),
        )

    @property
    def total(self) -> int:
        return self.embedding + self.body + self.head

    @property
    def fp32_bytes(self) -> int:
        return self.total * _FP32_BYTES

    @property
    def fp16_bytes(self) -> int:
        return self.total * 2

    @property
    def int8_bytes(self) -> int:
        """As stage `export` writes them: matrices and tables 8 bits with a scale for each row, all else fp32."""
        return self.matrices + (self.total - self.matrices + self.scales) * _FP32_BYTES


def layer_matrices(model: LanguageModel) -> Iterator[nn.Parameter]:
    """2-D weights of the repeated layers, which every encoder keeps in a ModuleList."""
    for layers in (module for part in parts_of(model) for module in part.base_model.modules()):
        if isinstance(layers, nn.ModuleList):
            yield from (parameter for parameter in layers.parameters() if parameter.ndim == 2)


def _size(parameters: Mapping[int, Tensor]) -> int:
    return sum(parameter.numel() for parameter in parameters.values())
