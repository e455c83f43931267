"""Costs of a pre-training: parameters, floating-point operations, and memory of a step.

Parameters are counted in the model itself on torch's meta device, which has shapes but no numbers. Floating-point
operations per token come from a formula. The memory of a step is weights, gradients, the optimizer's state, and the
activations that a forward pass keeps for the backward pass, counted in numbers per token. A pre-training that may not
fit into memory gets a warning, because the kernel would kill it without a message.
"""

import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Self

import torch
from torch import Tensor, nn

from clozeline.encoder.architecture import SIZES, Shape
from clozeline.encoder.families import FAMILIES, layout
from clozeline.encoder.own import OwnModel
from clozeline.language import models
from clozeline.language.detection import ReplacedTokenPair, parts_of
from clozeline.language.models import LanguageModel, head_of, outline
from clozeline.language.objectives import OBJECTIVES
from clozeline.params.model import ModelParams
from clozeline.params.pretraining import PretrainParams
from clozeline.planning.timing import Speed, measure, own_device
from clozeline.pretraining.job import Pretraining
from clozeline.pretraining.starting import start_from, token_ids
from clozeline.system.machine import available_bytes, available_cores
from clozeline.training.micro_batches import Name, Precision
from clozeline.training.optimizers import OPTIMIZERS, layer_matrices

_FP32_BYTES = 4
# A backward pass costs twice the forward pass: one product for the inputs and one for the weights.
_BACKWARD = 2
_PER_ELEMENT: Mapping[Name, int] = {"fp32": 4, "bf16": 2, "fp16": 2}
# Advice if a step needs more memory than the device has.
TOO_LARGE = (
    "A step does not fit into this device's memory: set `micro_batch_tokens` (the step stays the same) or"
    " `gradient_checkpointing: true` (a third slower), or choose a smaller size."
)
# Heads shown by `zoo`; `clm` is omitted because it has the same parameters as `mlm`.
_IN_ZOO: tuple[layout.LanguageHead, ...] = ("mlm", "rtd")
_LOG = logging.getLogger(__name__)
_GIB = 2**30


def encoder_matrices(model: LanguageModel) -> Iterator[nn.Parameter]:
    """Yield the 2-D weights of the repeated layers; for replaced-token detection those of both encoders."""
    for part in parts_of(model):
        yield from layer_matrices(part.base_model)


@dataclass(frozen=True)
class ParameterCount:
    """Number of parameters by part of the model. A tied weight counts once, as an embedding."""

    embedding: int  # parameters in tables of tokens, positions and token types
    body: int
    head: int
    matrices: int  # parameters in matrices and tables, which the export quantizes
    scales: int  # rows of those matrices and tables; each row gets an fp32 scale in INT8
    layer_matrices: int  # parameters in matrices of repeated layers, which Muon updates
    # Parameters of the generator of replaced-token detection only; they are not part of the resulting encoder.
    generator: int

    @classmethod
    def of(cls, model: LanguageModel) -> Self:
        every: set[Tensor] = {*model.parameters()}  # by identity: a tied weight is in it once
        tables = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
        inner: set[Tensor] = {parameter for part in parts_of(model) for parameter in part.base_model.parameters()}
        matrices = {parameter for parameter in every if parameter.ndim == 2}
        return cls(
            embedding=_size(tables),
            body=_size(inner - tables),
            head=_size(every - inner - tables),
            matrices=_size(matrices),
            scales=sum(map(len, matrices)),
            layer_matrices=_size(matrix for matrix in {*encoder_matrices(model)} if matrix not in tables),
            generator=_size(every - {*parts_of(model)[0].parameters()}),
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


def _size(parameters: Iterable[Tensor]) -> int:
    return sum(parameter.numel() for parameter in parameters)


@dataclass(frozen=True)
class Compute:
    """FLOPs per token of a full row; a multiplication and an addition are two operations.

    Kaplan et al. 2020, section 2.1 and table 1: the forward pass costs 2·N for the N weights that multiply a token, and
    4·layers·length·hidden if each token attends to all (2· if attention is causal). Forward and backward cost 3 times
    that, hence "6·N". Differences between families: a layer that is used several times counts as often (ALBERT);
    tokens are compared with relative positions too (DeBERTa); or with a window, and rows are padded to whole windows
    (Longformer). The head, with its vocabulary, counts for the targets only, because only they are predicted.

    A last layer that is computed only for the targets costs less than estimated here. Norms, activations, and work done
    once per batch are left out, as in the paper.
    """

    body: float
    attention: float
    head: float

    @classmethod
    def of(cls, model: LanguageModel, *, length: int, target_share: float) -> Self:
        """Return the compute of `model`.

        `length`: tokens per row. `target_share`: targets / tokens, 0-1; a discriminator predicts at every token.
        """
        if isinstance(model, ReplacedTokenPair):
            one = cls.of(model.discriminator, length=length, target_share=1.0)
            other = cls.of(model.generator, length=length, target_share=target_share)
            return cls(one.body + other.body, one.attention + other.attention, one.head + other.head)
        encoder = {*model.base_model.modules()}
        tables = {module.weight for module in encoder if isinstance(module, nn.Embedding)}
        own = {matrix for matrix in _multiplied(model) if matrix not in tables}
        inside = {*encoder_matrices(model)} & own
        times_used = num_layers(model) / getattr(model.config, "num_hidden_groups", num_layers(model))
        # The vocabulary's layer is outside the encoder, and counts also if it is tied to the table of tokens.
        head = [module.weight for module in {*model.modules()} - encoder if isinstance(module, nn.Linear)]
        seen = 0.5 if head_of(model) == "clm" else 1.0
        padded = padded_length(model, length) / length
        return cls(
            body=2.0 * (_size(inside) * times_used + _size(own - inside)) * padded,
            attention=4.0 * num_layers(model) * _num_compared(model, length) * hidden_size(model) * seen * padded,
            head=2.0 * target_share * _size(head),
        )

    @property
    def forward(self) -> float:
        return self.body + self.attention + self.head

    @property
    def training(self) -> float:
        return (1 + _BACKWARD) * self.forward


def _multiplied(model: LanguageModel) -> Iterator[nn.Parameter]:
    """Yield the weights of the encoder that may multiply a token, including tables.

    Excluded are weights that pre-training leaves unused: those of the pooler and of global attention.
    """
    for name, parameter in model.base_model.named_parameters():
        if parameter.ndim >= 2 and "pooler." not in name and "_global." not in name:
            yield parameter


def padded_length(model: LanguageModel, length: int) -> int:
    """Return the length of a row in tokens after the encoder's padding."""
    window = window_of(model)
    return length if window is None else math.ceil(length / window) * window


def _num_compared(model: LanguageModel, length: int) -> float:
    """Return the number of attended positions per token, averaged over both products: queries × keys, and scores ×
    values.

    Longformer cuts rows into chunks of one window that overlap by half (Beltagy et al. 2020, section 3.2), and takes
    values from three halves. DeBERTa compares content with positions and positions with content (He et al. 2020,
    equation 4), over `position_buckets` on each side.
    """
    window = window_of(model)
    if window is not None:
        half = window / 2
        return (4 * half * (1 - half / padded_length(model, length)) + 3 * half) / 2
    num_positions = 2 * getattr(model.config, "position_buckets", 0)
    return length + num_positions


def window_of(model: LanguageModel) -> int | None:
    windows = getattr(model.config, "attention_window", None)
    return None if windows is None else max(windows) if isinstance(windows, list) else int(windows)


def hidden_size(model: LanguageModel) -> int:
    """Return the hidden size, from the configuration of a stock model or from an encoder of your own."""
    owner: Any = model.config if hasattr(model.config, "hidden_size") else model.base_model
    return int(owner.hidden_size)


def num_layers(model: LanguageModel) -> int:
    """Return the number of layers that a token passes; for an encoder of your own, its longest `ModuleList`."""
    stated = getattr(model.config, "num_hidden_layers", None)
    lists = (len(module) for module in model.base_model.modules() if isinstance(module, nn.ModuleList))
    return int(stated) if stated is not None else max(lists, default=1)


def kept_per_token(model: LanguageModel, params: PretrainParams, *, is_on_cpu: bool) -> float:
    """Return the numbers kept per token over all layers of one encoder, for rows of `params.max_length` tokens.

    Outside attention each layer keeps 8·hidden and both sides of the MLP's inner width (Korthikanti et al. 2022,
    section 4.1); attention and family-specific terms are added below. With gradient checkpointing it is hidden for each
    layer, plus one whole layer.
    """
    hidden, matrices = hidden_size(model), list(encoder_matrices(model))
    widest_out, widest_in = (max((matrix.shape[axis] for matrix in matrices), default=hidden) for axis in (0, 1))
    layer = 8 * hidden + widest_out + widest_in + _kept_by_attention(model, params, is_on_cpu)
    if params.model.dropout:
        layer += 2 * hidden  # dropout masks
    if hasattr(model.config, "local_attention"):  # ModernBERT: rotated queries and keys; the gated MLP
        layer += 2 * hidden + widest_in
    kept = num_layers(model) * hidden + layer if params.gradient_checkpointing else num_layers(model) * layer
    if head_of(model) == "clm" and hasattr(model.config, "layer_types"):  # ModernBERT's two masks over all pairs
        kept += 2 * params.max_length
    return kept * padded_length(model, params.max_length) / params.max_length


def _kept_by_attention(model: LanguageModel, params: PretrainParams, is_on_cpu: bool) -> float:
    """Return the numbers that attention keeps. Fused attention keeps no scores; with dropout a CPU does not fuse it."""
    drops = params.model.attention_dropout > 0
    num_heads: int = getattr(model.config, "num_attention_heads", 0)
    window = window_of(model)
    if window is not None:  # Longformer: scores, and overlapping chunks of scores, queries, keys and values
        return num_heads * window * (2.5 + drops) + 5 * hidden_size(model)
    is_written_out = getattr(model.config, "_attn_implementation", None) == "eager"
    num_scores = num_heads * params.max_length
    if not is_written_out:
        return 3 * num_scores if drops and is_on_cpu else 0
    return (3 if drops else 1) * num_scores + _kept_by_relative_positions(model, num_heads, params.max_length)


def _kept_by_relative_positions(model: LanguageModel, num_heads: int, length: int) -> float:
    """Return the numbers that DeBERTa's relative positions keep (He et al. 2020, equation 4).

    These are content-to-position and position-to-content scores, and the projected positions, computed for each row.
    """
    num_positions = 2 * getattr(model.config, "position_buckets", 0)
    if not num_positions:
        return 0
    return 2 * num_heads * num_positions + (2 * num_positions / length + 1) * hidden_size(model)


@dataclass(frozen=True)
class StepMemory:
    """Bytes on each device at the end of a forward pass, when all of them are held at once."""

    weights: int
    gradients: int
    optimizer: int
    activations: int  # estimate of what is kept for the backward pass, for the tokens of one micro-batch

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.activations

    @classmethod
    def of(cls, model: LanguageModel, params: PretrainParams, precision: Precision, target_share: float) -> Self:
        count = ParameterCount.of(model)
        num_tokens = params.micro_batch_tokens or params.batch_tokens
        is_on_cpu = precision.device.type == "cpu"
        elements = sum(kept_per_token(part, params, is_on_cpu=is_on_cpu) for part in parts_of(model)) * num_tokens
        logits = 2 * target_share * num_tokens * model.config.vocab_size
        return cls(
            weights=count.fp32_bytes,
            gradients=count.fp32_bytes,
            optimizer=optimizer_numbers(params.optimizer.kind, count) * _FP32_BYTES,
            activations=round(elements * _PER_ELEMENT[precision.name] + logits * _FP32_BYTES),
        )


def optimizer_numbers(name: str, count: ParameterCount) -> int:
    """Return how many fp32 numbers an optimizer of kind `name` keeps, except a few per tensor."""
    kind = OPTIMIZERS[name]
    others = count.total - count.layer_matrices
    return kind.num_states * others + kind.num_states_of_hidden * count.layer_matrices


def device_bytes() -> int:
    """Return the memory of the GPU in bytes if there is one; otherwise the main memory that this process may use."""
    return int(torch.cuda.mem_get_info()[1]) if torch.cuda.is_available() else available_bytes()


@dataclass(frozen=True)
class TrainingPlan:
    """Costs of a pre-training with `params` and a vocabulary of this size."""

    params: PretrainParams
    vocab_size: int
    family: str  # family of the model `params.start` if set, otherwise of `params.model`
    shape: Shape | None  # shape of the encoder; None for an encoder of your own
    precision: Precision
    count: ParameterCount
    compute: Compute
    memory: StepMemory

    @classmethod
    def of(cls, params: PretrainParams, vocab_size: int) -> Self:
        """Compute the plan without training.

        Raises:
            ArtifactError: `params.start` cannot be loaded.
            ParamsError: the params cannot be satisfied on this machine.
        """
        model = _built(params, vocab_size, "meta")
        precision = Precision.choose(params.precision, own_device())
        share = target_share(params)
        return cls(
            params=params,
            vocab_size=vocab_size,
            family=_family_of(model) if params.start else params.model.family,
            shape=models.shape_of_encoder(model),
            precision=precision,
            count=ParameterCount.of(model),
            compute=Compute.of(model, length=params.max_length, target_share=share),
            memory=StepMemory.of(model, params, precision, share),
        )

    def time(self) -> Speed:
        """Train a few steps on this machine."""
        torch.set_num_threads(self.params.num_threads or available_cores())
        model, share = _built(self.params, self.vocab_size, "cpu"), target_share(self.params)
        return measure(model, self.params, target_share=share, flops_per_token=self.compute.training)

    @property
    def budget_tokens(self) -> int:
        """Upper limit of the tokens to train on; rows may leave a batch partly empty."""
        return self.params.tokens or (self.params.steps or 0) * self.params.batch_tokens


def target_share(params: PretrainParams) -> float:
    """Return targets / tokens, 0-1, as the mean over the budget."""
    return OBJECTIVES[params.objective].target_share(params.masking)


def zoo(params: ModelParams, vocab_size: int) -> dict[tuple[str, str], tuple[Shape | None, ParameterCount]]:
    """Return shape and parameter count of every family in every size, by (family, size); `params` gives all else.

    A family that supports replaced-token detection appears a second time, with its generator.
    """
    found: dict[tuple[str, str], tuple[Shape | None, ParameterCount]] = {}
    rows = [(name, head) for name, family in FAMILIES.items() for head in _IN_ZOO if head in family.forms]
    for (name, head), size in product(rows, SIZES):
        model = outline(params.model_copy(update={"family": name, "size": size}), head, vocab_size)
        family = name if head == "mlm" else f"{name}, {head}"
        found[family, size] = models.shape_of_encoder(model), ParameterCount.of(model)
    return found


def _built(params: PretrainParams, vocab_size: int, device: str) -> LanguageModel:
    """Load the model `params.start`, because only its files know its shape; without one, build that of `params.model`
    on a device.
    """
    head = OBJECTIVES[params.objective].head
    if params.start is None:
        with torch.device(device):
            return models.build(params.model, head, layout.TokenIds(vocab_size, pad_id=0, cls_id=2, sep_id=3), seed=0)
    ids = replace(token_ids(params.start, params.start_revision, head), vocab_size=vocab_size)
    return start_from(params, ids, seed=0)


def _family_of(model: LanguageModel) -> str:
    part = parts_of(model)[0]
    if isinstance(part, OwnModel):
        return part.config.model_params.family
    return next(name for name, family in FAMILIES.items() if type(part.config) in family.forms.values())


def warn_of_memory(job: Pretraining) -> None:
    """Log a warning if a step needs more memory than available, by the estimate of `clozeline plan`.

    Training in several processes is not checked, because the estimate is for a single one.
    """
    hardware = job.loop.hardware
    if hardware.processes.world_size > 1:
        return
    needed_bytes = StepMemory.of(job.model, job.params, hardware.precision, target_share(job.params)).total
    there_bytes = device_bytes()
    if needed_bytes > there_bytes:
        _LOG.warning(
            "a step needs about %.2f GiB, but only %.2f GiB are available. %s",
            needed_bytes / _GIB,
            there_bytes / _GIB,
            TOO_LARGE,
        )
