"""Parameter counts, taken from the model itself on torch's meta device, which has shapes but no numbers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

from torch import Tensor, nn

from clozeline.language_modelling.detection import parts_of
from clozeline.language_modelling.language_model import LanguageModel
from clozeline.training.optimizers.groups import layer_matrices

_FP32_BYTES = 4


def encoder_matrices(model: LanguageModel) -> Iterator[nn.Parameter]:
    """Yield the 2-D weights of the repeated layers; for replaced-token detection those of both encoders."""
    for part in parts_of(model):
        yield from layer_matrices(part.base_model)


@dataclass(frozen=True)
class ParameterCount:
    """Number of parameters by part of the model. A tied weight counts once, as an embedding."""

    embedding: int
    """Parameters in tables of tokens, positions and token types."""
    body: int
    head: int
    matrices: int
    """Parameters in matrices and tables, which the export quantizes."""
    scales: int
    """Rows of those matrices and tables; each row gets an fp32 scale in INT8."""
    layer_matrices: int
    """Parameters in matrices of repeated layers, which Muon updates."""
    generator: int
    """Parameters of the generator of replaced-token detection only; they are not part of the resulting encoder."""

    @classmethod
    def of(cls, model: LanguageModel) -> Self:
        tables = {id(module.weight): module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
        inner = {id(parameter): parameter for part in parts_of(model) for parameter in part.base_model.parameters()}
        every = {id(parameter): parameter for parameter in model.parameters()}
        of_encoder = {id(parameter) for parameter in parts_of(model)[0].parameters()}
        matrices = [parameter for parameter in every.values() if parameter.ndim == 2]
        in_layers = {id(matrix): matrix for matrix in encoder_matrices(model) if id(matrix) not in tables}
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
        """Size as written by stage `export`: matrices and tables in 8 bits with a scale per row, the rest in fp32."""
        return self.matrices + (self.total - self.matrices + self.scales) * _FP32_BYTES


def _size(parameters: Mapping[int, Tensor]) -> int:
    return sum(parameter.numel() for parameter in parameters.values())
