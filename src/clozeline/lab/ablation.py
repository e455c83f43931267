"""Two arms trained from the same seeds: is their difference more than chance?

Shapes: S seeds, D blocks of documents.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from clozeline.cluster.ledger import open_workers
from clozeline.lab.contest import SIGNIFICANT, PairedTest
from clozeline.lab.experiment import Arm, Corpus, Experiment, Result, tokenized
from clozeline.params.project import Params
from clozeline.system.errors import ClozelineError

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Effect:
    """A figure of both arms, means over the seeds, and the second arm minus the first."""

    first: float
    second: float
    over_seeds: PairedTest

    @classmethod
    def of(cls, first_S: Sequence[float], second_S: Sequence[float]) -> Self:
        one_S, other_S = np.array(first_S), np.array(second_S)
        return cls(float(one_S.mean()), float(other_S.mean()), PairedTest.over_seeds(other_S, one_S))


@dataclass(frozen=True)
class Ablation:
    """What an ablation found. Differences are of the second arm minus the first."""

    first: str
    second: str
    seeds: tuple[int, ...]
    num_documents: int
    nats_per_byte: Effect
    # Difference of nats per byte over the documents of the validation text, summed over the seeds.
    over_documents: PairedTest
    wall_seconds: Effect
    cpu_seconds: Effect

    @property
    def p_value(self) -> float:
        """Larger of the two p-values: the difference has to hold for other seeds and for other texts."""
        return max(self.nats_per_byte.over_seeds.p_value, self.over_documents.p_value)

    @property
    def better(self) -> str | None:
        """Name of the better arm; None: the difference may be chance."""
        if self.p_value >= SIGNIFICANT:
            return None
        return self.second if self.nats_per_byte.over_seeds.difference < 0 else self.first


def ablate(arms: Sequence[Arm], num_seeds: int, corpus: Corpus, base: Params, kept: Path) -> Ablation:
    """Train both arms from each seed, here or on a cluster, and compare them. What an earlier call finished is not done
    again.

    Args:
        num_seeds: seeds from `seed` of params.yaml on.
        corpus: text and tokens of `base`, the project's params.
        kept: folder of the experiments.

    Raises:
        ClozelineError: a training failed; the message names its arm and its seed.
    """
    seeds = tuple(range(base.seed, base.seed + num_seeds))
    corpora = [corpus if arm.params.tokenize == base.tokenize else tokenized(corpus, arm.config, kept) for arm in arms]
    # Every other seed begins with the second arm: a machine that slows down does not favour one of them.
    items = [
        _Item(place, arms[place].name, seed, Experiment.of(arms[place].config, seed, corpora[place], kept))
        for turn, seed in enumerate(seeds)
        for place in ((0, 1) if turn % 2 == 0 else (1, 0))
    ]
    found: list[list[Result]] = [[], []]
    with open_workers(kept, 1, trains=True) as workers:
        for item, result in zip(items, workers.map(_result, items), strict=True):
            found[item.place].append(result)
            _LOG.info(
                "%d of %d: %s from seed %d: %.4f nats per byte, %.1f s",
                *(len(found[0]) + len(found[1]), len(items), "AB"[item.place], item.seed),
                *(result.nats_per_byte, result.seconds.wall),
            )
    return _compared(arms, seeds, *found, num_samples=base.evaluate.num_bootstrap_samples)


@dataclass(frozen=True)
class _Item:
    place: int  # 0: the first arm
    arm: str
    seed: int
    experiment: Experiment

    @property
    def name(self) -> str:
        return f"{self.arm} from seed {self.seed}"


def _result(item: _Item) -> Result:
    try:
        return item.experiment.run()
    except ClozelineError as error:
        named = f"`{item.arm}` from seed {item.seed}: {error.problem}"
        raise type(error)(named, given=error.given, expected=error.expected, do=error.do) from error


def _compared(
    arms: Sequence[Arm], seeds: tuple[int, ...], first: Sequence[Result], second: Sequence[Result], *, num_samples: int
) -> Ablation:
    nats_D, others_D = (np.array([result.nats for result in results]).sum(axis=0) for results in (second, first))
    bytes_D = len(seeds) * np.array(first[0].text_bytes, dtype=np.float64)

    def effect(figure: Callable[[Result], float]) -> Effect:
        return Effect.of(*([figure(result) for result in results] for results in (first, second)))

    return Ablation(
        first=arms[0].name,
        second=arms[1].name,
        seeds=seeds,
        num_documents=first[0].num_documents,
        nats_per_byte=effect(lambda result: result.nats_per_byte),
        over_documents=PairedTest.of(nats_D, others_D, bytes_D, seed=arms[0].params.seed, num_samples=num_samples),
        wall_seconds=effect(lambda result: result.seconds.wall),
        cpu_seconds=effect(lambda result: result.seconds.cpu),
    )
