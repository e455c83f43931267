"""All costs of one pre-training."""

from dataclasses import dataclass, replace
from typing import Self

import torch

from clozeline.encoder.families import FAMILIES, LanguageHead, TokenIds
from clozeline.encoder.own import OwnModel
from clozeline.encoder.sizes import SIZES, Shape
from clozeline.language_modelling import language_model
from clozeline.language_modelling.detection import parts_of
from clozeline.language_modelling.language_model import LanguageModel, outline
from clozeline.language_modelling.objectives import OBJECTIVES
from clozeline.machine.cores import available_cores
from clozeline.params import ModelParams, PretrainParams
from clozeline.planning.compute import Compute
from clozeline.planning.counting import ParameterCount
from clozeline.planning.memory import StepMemory
from clozeline.planning.speed import Speed, measure
from clozeline.pretraining.starting import start_from, token_ids
from clozeline.training.precision import Precision


@dataclass(frozen=True)
class Plan:
    """Costs of a pre-training with `params` and a vocabulary of this size."""

    params: PretrainParams
    vocab_size: int
    family: str
    """Family of the model `params.start` if set, otherwise of `params.model`."""
    shape: Shape | None
    """Shape of the encoder; None for an encoder of your own."""
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
        model = _started(params, vocab_size) or outline(params.model, OBJECTIVES[params.objective].head, vocab_size)
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
            self.params.model, OBJECTIVES[self.params.objective].head, _ids(self.vocab_size), seed=0
        )
        share = target_share(self.params)
        return measure(model, self.params, target_share=share, flops_per_token=self.compute.training)

    @property
    def budget_tokens(self) -> int:
        """Upper limit of the tokens to train on; rows may leave a batch partly empty."""
        return self.params.tokens or (self.params.steps or 0) * self.params.batch_tokens


def target_share(params: PretrainParams) -> float:
    """Return targets / tokens, 0-1, as the mean over the budget."""
    return OBJECTIVES[params.objective].target_share(params.masking)


_IN_ZOO: tuple[LanguageHead, ...] = ("mlm", "rtd")
"""Heads shown by `zoo`; `clm` is omitted because it has the same parameters as `mlm`."""


def zoo(params: ModelParams, vocab_size: int) -> dict[tuple[str, str], tuple[Shape | None, ParameterCount]]:
    """Return shape and parameter count of every family in every size, by (family, size); `params` gives all else.

    A family that supports replaced-token detection appears a second time, with its generator.
    """
    return {
        (name if head == "mlm" else f"{name}, {head}", size): (
            language_model.shape_of_encoder(model),
            ParameterCount.of(model),
        )
        for name, family in FAMILIES.items()
        for head in _IN_ZOO
        if head in family.forms
        for size in SIZES
        for model in [outline(params.model_copy(update={"family": name, "size": size}), head, vocab_size)]
    }


def _started(params: PretrainParams, vocab_size: int) -> LanguageModel | None:
    """Load the model `params.start`, because only its files know its shape; None if it is not set."""
    if params.start is None:
        return None
    head = OBJECTIVES[params.objective].head
    return start_from(
        params.start,
        params.start_revision,
        params.model,
        head,
        replace(token_ids(params.start, params.start_revision, head), vocab_size=vocab_size),
        seed=0,
        max_length=params.max_length,
    )


def _family_of(model: LanguageModel) -> str:
    part = parts_of(model)[0]
    if isinstance(part, OwnModel):
        return part.config.model_params.family
    return next(
        name
        for name, family in FAMILIES.items()
        if any(type(part.config) is form.config_class for form in family.forms.values())
    )


def _ids(vocab_size: int) -> TokenIds:
    return TokenIds(vocab_size, 0, 2, 3)
