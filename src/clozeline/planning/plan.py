"""The costs of one pre-training, together."""

from dataclasses import dataclass, replace
from typing import Self

import torch

from clozeline.encoder import language_model
from clozeline.encoder.detection import parts_of
from clozeline.encoder.encoders import OwnEncoderWithHead
from clozeline.encoder.families import FAMILIES, Objective, TokenIds
from clozeline.encoder.language_model import LanguageModel
from clozeline.encoder.sizes import SIZES, Shape
from clozeline.encoder.starting import start_from, token_ids
from clozeline.machine.cores import available_cores
from clozeline.params import ModelParams, PretrainParams
from clozeline.planning.compute import Compute
from clozeline.planning.counting import ParameterCount, outline
from clozeline.planning.memory import StepMemory
from clozeline.planning.speed import Speed, measure
from clozeline.training.precision import Precision


@dataclass(frozen=True)
class Plan:
    """What `params` will cost, with a vocabulary of this size."""

    params: PretrainParams
    vocab_size: int
    family: str
    """Of `params.start`, if there is one: a checkpoint has its own."""
    shape: Shape | None
    """None: of an encoder of your own."""
    precision: Precision
    count: ParameterCount
    compute: Compute
    memory: StepMemory

    @classmethod
    def of(cls, params: PretrainParams, vocab_size: int) -> Self:
        """
        Raises:
            ArtifactError: `params.start` cannot be had.
            ParamsError: the params cannot be met here.
        """
        model = _started(params, vocab_size) or outline(params.model, params.objective, vocab_size)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        precision = Precision.choose(params.precision, device)
        share = target_share(params)
        return cls(
            params=params,
            vocab_size=vocab_size,
            family=_family_of(model) if params.start else params.model.family,
            shape=language_model.shape_of_encoder(model),
            precision=precision,
            count=ParameterCount.of(model),
            compute=Compute.of(model, length=params.max_length, target_share=share),
            memory=StepMemory.of(model, params, precision, share),
        )

    def time(self) -> Speed:
        """Train a few steps on this machine."""
        torch.set_num_threads(self.params.num_threads or available_cores())
        model = _started(self.params, self.vocab_size) or language_model.build(
            self.params.model, self.params.objective, _ids(self.vocab_size), seed=0
        )
        share = target_share(self.params)
        return measure(model, self.params, target_share=share, flops_per_token=self.compute.training)

    @property
    def budget_tokens(self) -> int:
        """At most: a batch is as full as its rows allow."""
        return self.params.tokens or (self.params.steps or 0) * self.params.batch_tokens


def target_share(params: PretrainParams) -> float:
    """Targets over tokens, the mean over the budget; under `clm` every token is one."""
    if params.objective == "clm":
        return 1.0
    masking = params.masking
    return (masking.mask_rate + (masking.final_mask_rate or masking.mask_rate)) / 2


_IN_ZOO: tuple[Objective, ...] = ("mlm", "rtd")
"""Not `clm`: it has the same parameters as `mlm`."""


def zoo(params: ModelParams, vocab_size: int) -> dict[tuple[str, str], tuple[Shape | None, ParameterCount]]:
    """Every family in every size, by (family, size): its shape and parameters; `params` gives all else.

    A family that can be trained to detect replaced tokens is there a second time, with its generator.
    """
    return {
        (name if objective == "mlm" else f"{name}, {objective}", size): (
            language_model.shape_of_encoder(model),
            ParameterCount.of(model),
        )
        for name, family in FAMILIES.items()
        for objective in _IN_ZOO
        if objective in family.forms
        for size in SIZES
        for model in [outline(params.model_copy(update={"family": name, "size": size}), objective, vocab_size)]
    }


def _started(params: PretrainParams, vocab_size: int) -> LanguageModel | None:
    """A checkpoint brings its own shape: it has to be looked at."""
    if params.start is None:
        return None
    return start_from(
        params.start,
        params.start_revision,
        params.model,
        params.objective,
        replace(token_ids(params.start, params.start_revision, params.objective), vocab_size=vocab_size),
        seed=0,
        max_length=params.max_length,
    )


def _family_of(model: LanguageModel) -> str:
    part = parts_of(model)[0]
    if isinstance(part, OwnEncoderWithHead):
        return part.config.params.family
    return next(
        name
        for name, family in FAMILIES.items()
        if any(type(part.config) is form.config_class for form in family.forms.values())
    )


def _ids(vocab_size: int) -> TokenIds:
    return TokenIds(vocab_size, 0, 2, 3)
