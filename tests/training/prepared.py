"""A tiny pre-training, with what a test changes of it."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clozeline.params.model import OptimizerParams
from clozeline.params.pretraining import PretrainParams
from clozeline.pretraining import job as pretraining
from clozeline.pretraining.job import Pretrained, Pretraining
from clozeline.training.curves import CurvePoint
from clozeline.training.distribution import Processes
from clozeline.training.micro_batches import Hardware, MicroBatches, Precision
from clozeline.training.state import Callback

CPU = torch.device("cpu")
OPTIMIZER = OptimizerParams(
    kind="adamw",
    learning_rate=0.1,
    matrix_learning_rate=None,
    beta1=0.9,
    beta2=0.98,
    epsilon=1e-6,
    weight_decay=0.0,
    clip_norm=1.0,
)
# Changes that make it a training of replaced-token detection.
DETECTING = {"objective": "rtd", "model__family": "electra"}


def changed(params: PretrainParams, **changes: Any) -> PretrainParams:
    """Return `params` with `changes`; keys of subsections are written `section__key`."""
    tree = params.model_dump()
    for name, value in changes.items():
        section, _, key = name.rpartition("__")
        (tree[section] if section else tree)[key] = value
    return PretrainParams.model_validate(tree)


class Prepare:
    """`prepare(key=value, …)`: a tiny pre-training with these params changed; `prepare.trained(…)`: run to its end."""

    def __init__(self, tokens: Path, tokenizer: Path, params: PretrainParams, folder: Path) -> None:
        self.tokens, self.tokenizer, self.params, self.folder = tokens, tokenizer, params, folder

    def but(self, **changes: object) -> "Prepare":
        """Return the same with other params from the start."""
        return Prepare(self.tokens, self.tokenizer, changed(self.params, **changes), self.folder)

    def __call__(
        self, work: str = "work", seed: int = 1, tokenizer: Path | None = None, **changes: object
    ) -> Pretraining:
        given = {"tokens": self.tokens, "tokenizer": tokenizer or self.tokenizer, "work": self.folder / work}
        return pretraining.prepare(changed(self.params, **changes), seed=seed, **given)

    def trained(self, *callbacks: Callback, **changes: object) -> Pretrained:
        given = {"tokens": self.tokens, "tokenizer": self.tokenizer, "callbacks": callbacks}
        return pretraining.pretrain(changed(self.params, **changes), seed=1, **given)


class Killed(BaseException):
    """Stands for a kill: nothing in a training catches it."""


class KillsAt(Callback):
    """Ends a training at the first point of its curve from `step` on."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_point(self, point: CurvePoint) -> None:
        if point.step >= self.step:
            raise Killed


def weights_of(model: torch.nn.Module) -> list[Tensor]:
    return [weight.detach().clone() for weight in model.state_dict().values()]


def largest_difference(one: list[Tensor], other: list[Tensor]) -> float:
    return max((a - b).abs().max().item() for a, b in zip(one, other, strict=True))


def plain_hardware() -> Hardware[Any]:
    """Return one process on the CPU, in fp32, with whole batches."""
    return Hardware(Processes.alone(), Precision.of("fp32", CPU), MicroBatches(None, CPU))


def graphs_of(loss: torch.nn.Module) -> list[object]:
    """Compile `loss` with a backend that needs no compiler, and return the list that gets its graphs."""
    graphs: list[object] = []

    def counting(graph: torch.fx.GraphModule, inputs: object) -> object:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    pretraining.compiled(loss, wanted=True, backend=counting)
    return graphs
