"""Optimizers and learning rates: one row for each kind. A new kind is a new row, and its name in OptimizerParams.

A step of our own optimizers is a step of each group of parameters that has gradients. Groups tell parameters with and
without weight decay, and hidden matrices.

- LAMB: Adam with steps that are scaled, in each tensor, by the tensor's own norm.
- Muon: orthogonal steps of hidden matrices, so that no direction of the hidden space is starved.
- NovoGrad: one second moment for each tensor, so that its state takes half the memory of Adam's.
- StableAdamW: AdamW with shorter steps where the second moment lags behind a jump of the gradient.

The learning rate, as a fraction of its peak, is a pure function of the optimizer step.

Shapes: K matrices of one shape, R rows, C columns.
"""

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from clozeline.params.model import OptimizerParams, ScheduleParams
from clozeline.system.errors import ParamsError

Group = dict[str, Any]

_MOMENTUM = 0.95
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_NUM_ITERATIONS = 5
# Root mean square of AdamW's updates, as Liu et al. measured it.
_UPDATE_SCALE = 0.2
_SMALLEST_NORM = 1e-7


def decay_groups(model: nn.Module, params: OptimizerParams) -> list[Group]:
    """Return a group that decays, matrices and embeddings, and one that does not, vectors (norms and biases).

    A tied weight is in one group once, because `Module.parameters` yields it once.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return _decay_groups(trained, params)


def hidden_matrix_groups(model: nn.Module, params: OptimizerParams) -> list[Group]:
    """Return the hidden matrices at `matrix_learning_rate`, marked `is_hidden`, then the rest as in `decay_groups`.

    Hidden are the 2-D weights of the repeated layers, which every encoder keeps in a `ModuleList`. Embeddings, also
    where a decoder is tied to them, and the head are not: their rows are tokens, not directions of a hidden space
    (Jordan et al. 2024).

    Raises:
        ParamsError: the model has no hidden matrix.
    """
    embedding_ids = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    hidden_ids = {id(parameter) for parameter in layer_matrices(model)} - embedding_ids
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    hidden = [parameter for parameter in trained if id(parameter) in hidden_ids]
    if not hidden:
        raise ParamsError(
            f"`optimizer.kind` muon finds no trained matrix in a torch.nn.ModuleList of {type(model).__name__}",
            do="choose `adamw`, or keep the layers of your encoder in a ModuleList",
        )
    rest = [parameter for parameter in trained if id(parameter) not in hidden_ids]
    assert params.matrix_learning_rate is not None, "params demand it for muon"
    matrices = _group(hidden, params.matrix_learning_rate, params.weight_decay)
    groups = [matrices, *_decay_groups(rest, params)]
    return [{**group, "is_hidden": group is matrices} for group in groups]


def by_rate(groups: Sequence[Group], rate_of: Callable[[nn.Parameter], float]) -> list[Group]:
    """Split each group by the share of its learning rate at which parameters learn, the highest first."""
    parts = []
    for group in groups:
        for rate in sorted({rate_of(parameter) for parameter in group["params"]}, reverse=True):
            alike = [parameter for parameter in group["params"] if rate_of(parameter) == rate]
            rates = {key: group[key] * rate for key in ("lr", "peak_lr")}
            parts.append({**group, **rates, "params": alike})
    return parts


def _decay_groups(trained: Sequence[nn.Parameter], params: OptimizerParams) -> list[Group]:
    matrices = [parameter for parameter in trained if parameter.ndim >= 2]
    vectors = [parameter for parameter in trained if parameter.ndim < 2]
    groups = [_group(matrices, params.learning_rate, params.weight_decay), _group(vectors, params.learning_rate, 0.0)]
    return [group for group in groups if group["params"]]


def _group(parameters: list[nn.Parameter], peak: float, weight_decay: float) -> Group:
    return {"params": parameters, "lr": peak, "peak_lr": peak, "weight_decay": weight_decay}


def layer_matrices(model: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the 2-D weights of the repeated layers, which every encoder keeps in a ModuleList."""
    for layers in model.modules():
        if isinstance(layers, nn.ModuleList):
            yield from (parameter for parameter in layers.parameters() if parameter.ndim == 2)


class GroupwiseOptimizer(torch.optim.Optimizer, ABC):
    """An optimizer that changes one group at a time.

    Everything a step depends on is in `state` and `param_groups`, so that a checkpoint's `state_dict` holds it whole.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                group["step"] = group.get("step", 0) + 1
                self._step_group(group, parameters, [parameter.grad for parameter in parameters])
        return loss

    @abstractmethod
    def _step_group(self, group: Group, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        """Update `parameters` in place from `gradients`, which stay unchanged; `group["step"]` counts from 1."""

    def _zeros(self, name: str, parameters: list[Tensor]) -> list[Tensor]:
        """Return the state `name` of each parameter, of its shape; zeros at the first step."""
        for parameter in parameters:
            if name not in self.state[parameter]:
                self.state[parameter][name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return [self.state[parameter][name] for parameter in parameters]

    def _moments(
        self, parameters: list[Tensor], gradients: list[Tensor], beta1: float, beta2: float
    ) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Yield each parameter with its gradient and Adam's two moments, which now hold the gradient too."""
        firsts, seconds = self._zeros("exp_avg", parameters), self._zeros("exp_avg_sq", parameters)
        for parameter, gradient, first, second in zip(parameters, gradients, firsts, seconds, strict=True):
            first.lerp_(gradient, 1 - beta1)
            second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            yield parameter, gradient, first, second


class Lamb(GroupwiseOptimizer):
    """You et al. 2020, algorithm 2, with the identity for φ: u = m̂ / (√v̂ + epsilon) + decay·w;  w ← w - lr·‖w‖/‖u‖·u.

    Vectors (norms, biases) take plain Adam steps, as in the authors' code: a bias is zero at the start, and a step in
    units of its norm would never leave it.
    """

    def _step_group(self, group: Group, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        beta1, beta2 = group["betas"]
        for parameter, _, first, second in self._moments(parameters, gradients, beta1, beta2):
            denominator = (second / (1 - beta2 ** group["step"])).sqrt_().add_(group["eps"])
            update = (first / (1 - beta1 ** group["step"])).div_(denominator)
            update.add_(parameter, alpha=group["weight_decay"])
            parameter.add_(update.mul_(_trust_ratio(parameter, update)), alpha=-group["lr"])


def _trust_ratio(parameter: Tensor, update: Tensor) -> Tensor:
    """Return ‖w‖/‖u‖; 1 for vectors, and where a norm is zero."""
    if parameter.ndim < 2:
        return torch.ones((), device=parameter.device)
    norm, update_norm = parameter.norm(), update.norm()
    return torch.where((norm > 0) & (update_norm > 0), norm / update_norm, 1.0)


class MuonWithAdamW(GroupwiseOptimizer):
    """Muon for the groups marked `is_hidden`, AdamW (Loshchilov & Hutter 2019, algorithm 2) for the others.

    Muon follows Jordan et al. 2024, with weight decay and the scale of Liu et al. 2025 ("Muon is scalable for LLM
    training", section 2.2): w ← w - lr·(0.2·√max(R, C)·O + decay·w), O = orthogonalize(g + 0.95·b), b ← 0.95·b + g.
    At that scale its updates are as large as AdamW's, so that rates of both are of one magnitude, in any shape.

    It equals `torch.optim.Muon` with `adjust_lr_fn="match_rms_adamw"` except for what that does not offer. A CPU
    multiplies matrices in fp32 (a step over 2 layers × 128 took 228 ms in bf16 on AVX2 alone, 14 ms in fp32). Matrices
    of one shape are multiplied at once. The other parameters step in the same optimizer.
    """

    def _step_group(self, group: Group, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        step = self._step_hidden if group["is_hidden"] else self._step_others
        step(group, parameters, gradients)

    def _step_hidden(self, group: Group, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        lookaheads = []
        for parameter, gradient, momentum in zip(
            parameters, gradients, self._zeros("momentum", parameters), strict=True
        ):
            lookaheads.append(gradient.add(momentum.mul_(_MOMENTUM).add_(gradient), alpha=_MOMENTUM))
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
        for places in _places_by_shape(parameters):
            updates_KRC = orthogonalize(torch.stack([lookaheads[place] for place in places]))
            scale = _UPDATE_SCALE * max(updates_KRC.shape[1:]) ** 0.5
            for place, update_RC in zip(places, updates_KRC, strict=True):
                parameters[place].add_(update_RC, alpha=-group["lr"] * scale)

    def _step_others(self, group: Group, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        beta1, beta2 = group["betas"]
        for parameter in parameters:
            if "step" not in self.state[parameter]:
                self.state[parameter]["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
        adamw(
            parameters,
            gradients,
            self._zeros("exp_avg", parameters),
            self._zeros("exp_avg_sq", parameters),
            max_exp_avg_sqs=[],
            state_steps=[self.state[parameter]["step"] for parameter in parameters],
            fused=group["fused"],
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


def orthogonalize(matrices_KRC: Tensor) -> Tensor:
    """Return an approximation of U·Vᵀ for each matrix U·S·Vᵀ, in its dtype: singular values become 0.7 to 1.2.

    Five quintic Newton-Schulz iterations (Jordan et al. 2024): in bf16 on CUDA, as published; in fp32 on a CPU, where
    bf16 can be far slower.
    """
    is_tall = matrices_KRC.shape[1] > matrices_KRC.shape[2]
    x_KRC = matrices_KRC.mT if is_tall else matrices_KRC
    x_KRC = x_KRC.bfloat16() if matrices_KRC.is_cuda else x_KRC.float()
    x_KRC = x_KRC / torch.linalg.matrix_norm(x_KRC, keepdim=True).clamp(min=_SMALLEST_NORM)
    a, b, c = _COEFFICIENTS
    for _ in range(_NUM_ITERATIONS):
        gram_KRR = x_KRC @ x_KRC.mT
        polynomial_KRR = torch.baddbmm(gram_KRR, gram_KRR, gram_KRR, beta=b, alpha=c)
        x_KRC = torch.baddbmm(x_KRC, polynomial_KRR, x_KRC, beta=a)
    return (x_KRC.mT if is_tall else x_KRC).to(matrices_KRC.dtype)


def _places_by_shape(parameters: Iterable[Tensor]) -> Iterable[list[int]]:
    """Return the indices of parameters by shape and device: matrices of one shape are multiplied in one call."""
    places: defaultdict[tuple[torch.Size, torch.device], list[int]] = defaultdict(list)
    for place, parameter in enumerate(parameters):
        places[parameter.shape, parameter.device].append(place)
    return places.values()


class NovoGrad(GroupwiseOptimizer):
    """Ginsburg et al. 2019, algorithm 1: `v` is the squared norm of a tensor's gradient, smoothed by beta2;
    m ← beta1·m + (g / (√v + epsilon) + decay·w);  w ← w - lr·m.
    """

    def _step_group(self, group: Group, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        beta1, beta2 = group["betas"]
        for parameter, gradient, momentum in zip(
            parameters, gradients, self._zeros("momentum", parameters), strict=True
        ):
            state, square_norm = self.state[parameter], gradient.norm().square()
            # The average starts at the first norm: if it started at zero, the first steps would be too long.
            state["square_norm"] = torch.lerp(state.get("square_norm", square_norm), square_norm, 1 - beta2)
            direction = gradient / (state["square_norm"].sqrt() + group["eps"])
            momentum.mul_(beta1).add_(direction.add_(parameter, alpha=group["weight_decay"]))
            parameter.add_(momentum, alpha=-group["lr"])


class StableAdamW(GroupwiseOptimizer):
    """Wortsman et al. 2023, algorithm 2: in each tensor, η = lr / max(1, √mean(g² / max(v, epsilon²)));
    w ← w - η·decay·w - η·m / (√v + epsilon), with the bias correction in the betas.
    """

    def _step_group(self, group: Group, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        beta1, beta2 = (_debiased(beta, group["step"]) for beta in group["betas"])
        for parameter, gradient, first, second in self._moments(parameters, gradients, beta1, beta2):
            rate = group["lr"] / _root_mean_square(gradient, second, group["eps"]).clamp(min=1)
            update = first / second.sqrt().add_(group["eps"])
            parameter.sub_(update.add_(parameter, alpha=group["weight_decay"]).mul_(rate))


def _debiased(beta: float, step: int) -> float:
    """Return the debiased decay rate for `step`: the moving average then needs no bias correction; 0 at step 1."""
    return beta * (1 - beta ** (step - 1)) / (1 - beta**step)


def _root_mean_square(gradient: Tensor, second: Tensor, epsilon: float) -> Tensor:
    """Return how much larger the gradient is than the second moment predicts."""
    return (gradient.square() / second.clamp(min=epsilon**2)).mean().sqrt()


@dataclass(frozen=True)
class OptimizerKind:
    """Grouping of the parameters, and the optimizer that steps over the groups."""

    group: Callable[[nn.Module, OptimizerParams], list[Group]]
    # Maps groups and defaults (`lr`, `betas`, `eps`) to an optimizer.
    create: Callable[[list[Group], dict[str, Any]], torch.optim.Optimizer]
    num_states: int  # state tensors per parameter, of the parameter's shape
    num_states_of_hidden: int  # state tensors per hidden matrix


def build_optimizer(
    model: nn.Module, params: OptimizerParams, rate_of: Callable[[nn.Parameter], float] | None = None
) -> torch.optim.Optimizer:
    """Return the optimizer `params.kind` over the trainable parameters of `model`, each in exactly one group.

    Each group has a `peak_lr`, of which `scale_learning_rates` sets a fraction. `rate_of` returns the share of the
    learning rate at which a parameter learns; None: all parameters learn at the full rate.

    Raises:
        ParamsError: `muon`, and the model has no hidden matrix.
    """
    kind = OPTIMIZERS[params.kind]
    defaults = {"lr": params.learning_rate, "betas": (params.beta1, params.beta2), "eps": params.epsilon}
    groups = kind.group(model, params)
    return kind.create(groups if rate_of is None else by_rate(groups, rate_of), defaults)


def _adamw(groups: list[Group], defaults: dict[str, Any]) -> torch.optim.Optimizer:
    """Loshchilov & Hutter 2019, algorithm 2."""
    return torch.optim.AdamW(groups, **defaults, fused=True)


def _muon(groups: list[Group], defaults: dict[str, Any]) -> torch.optim.Optimizer:
    # `fused` is in the groups because torch decides by it how to store a loaded step count.
    return MuonWithAdamW(groups, {**defaults, "fused": True})


# Keyed by `kind` in params.yaml.
OPTIMIZERS: Mapping[str, OptimizerKind] = {
    "adamw": OptimizerKind(decay_groups, _adamw, 2, 2),
    "muon": OptimizerKind(hidden_matrix_groups, _muon, 2, 1),
    "novograd": OptimizerKind(decay_groups, NovoGrad, 1, 1),
    "lamb": OptimizerKind(decay_groups, Lamb, 2, 2),
    "stableadamw": OptimizerKind(decay_groups, StableAdamW, 2, 2),
}


def scale_learning_rates(optimizer: torch.optim.Optimizer, fraction: float) -> None:
    """Set each group's rate to `fraction` (0-1) of its `peak_lr`, which keeps the ratio between groups.

    A group without `peak_lr`, as in another library's optimizer, takes the rate it was built with as its peak.
    """
    for group in optimizer.param_groups:
        group["lr"] = group.setdefault("peak_lr", group["lr"]) * fraction


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up to the peak, an optional plateau, then a decay to `final_fraction` at the last step.

    Micro-batches and devices divide a step and do not count as steps, so the curve does not depend on them.
    """

    params: ScheduleParams
    total_steps: int

    @classmethod
    def linear_to_zero(cls, warmup_fraction: float, total_steps: int) -> Self:
        """Return the schedule of fine-tuning (Devlin et al. 2018, appendix A.2)."""
        linear = ScheduleParams(
            decay="linear",
            warmup_fraction=warmup_fraction,
            initial_fraction=0.0,
            final_fraction=0.0,
            power=1.0,
            decay_fraction=0.5,
        )
        return cls(linear, total_steps)

    @cached_property
    def warmup_steps(self) -> int:
        return round(self.params.warmup_fraction * self.total_steps)

    @cached_property
    def last_at_peak(self) -> int:
        """The last step at the peak."""
        if self.params.decay != "wsd":
            return self.warmup_steps
        start = self.total_steps - 1 - round(self.params.decay_fraction * self.total_steps)
        return max(start, self.warmup_steps)

    def fraction(self, step: int) -> float:
        """Return the fraction of the peak (0-1) at `step`, counted from 0; steps past the last are like the last.

        The first step of warm-up is above `initial_fraction`, so that no step is lost to a rate of zero. Warm-up
        therefore reaches the peak in its last step, and the decay starts at the peak: two steps are at the peak.
        """
        if step < self.warmup_steps:
            done = (step + 1) / self.warmup_steps
            return self.params.initial_fraction + (1 - self.params.initial_fraction) * done
        done = (step - self.last_at_peak) / max(self.total_steps - 1 - self.last_at_peak, 1)
        left = DECAYS[self.params.decay](min(max(done, 0.0), 1.0), self.params.power)
        return self.params.final_fraction + (1 - self.params.final_fraction) * left


# Shapes of the decay, keyed by `decay` in params.yaml: map the share of it that is done (0-1) and `power` to the share
# of the height that is left (1-0).
DECAYS: Mapping[str, Callable[[float, float], float]] = {
    # Loshchilov & Hutter 2017, equation 5, no restart
    "cosine": lambda done, power: (1 + math.cos(math.pi * done)) / 2,
    "linear": lambda done, power: 1 - done,
    "polynomial": lambda done, power: (1 - done) ** power,
    "constant": lambda done, power: 1.0,
    # Hägele et al. 2024, section 3: "1-sqrt" is their best cooldown
    "wsd": lambda done, power: 1 - math.sqrt(done),
}
