"""Paired comparison of two models on the same texts: is the difference more than chance?

Shapes: D documents or blocks of them, S seeds.
"""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy import stats

from clozeline.contest.contender import Contender, Said
from clozeline.evaluation.bootstrap import Floats, ratio_intervals, sign_flip_p_value


@dataclass(frozen=True)
class PairedTest:
    """Figure of the first model minus that of the second, paired by document."""

    difference: float
    low: float
    high: float
    """`low` and `high` are the ends of the 95 % interval. By document: bootstrap, with both models' answers."""
    p_value: float
    """Two-sided p-value. By document: how often random signs of the differences give one at least as large."""

    @classmethod
    def of(cls, first_D: Floats, second_D: Floats, weight_D: Floats, *, seed: int, num_samples: int) -> Self:
        """Compare sums by document over `weight_D`, bytes or targets."""
        difference_D = first_D - second_D
        ends = ratio_intervals(difference_D[:, None], weight_D[:, None], seed=seed, num_samples=num_samples)
        low, high = ends[:, 0].tolist()
        p_value = sign_flip_p_value(difference_D, seed=seed, num_samples=num_samples)
        return cls(float(difference_D.sum() / weight_D.sum()), low, high, p_value)

    @classmethod
    def over_seeds(cls, first_S: Floats, second_S: Floats) -> Self:
        """Compare figures of trainings from the same seeds, at least two, by the paired t-test (Student 1908).

        Random signs, as above, need six seeds before any difference is significant at 5 %.
        """
        difference_S = first_S - second_S
        mean, freedom = float(difference_S.mean()), len(difference_S) - 1
        error = float(difference_S.std(ddof=1)) / math.sqrt(len(difference_S))
        if error == 0:  # the same for every seed: no difference, or one without chance
            return cls(mean, mean, mean, 0.0 if mean else 1.0)
        margin = float(stats.t.ppf(0.975, freedom)) * error
        return cls(mean, mean - margin, mean + margin, 2 * float(stats.t.sf(abs(mean) / error, freedom)))


@dataclass(frozen=True)
class Comparison:
    """The first model minus the second; for a loss, below 0 is better."""

    nats_per_byte: PairedTest
    loss_nats_per_token: PairedTest | None
    """None if the tokens differ, because figures of different tokens do not compare."""
    top1: PairedTest | None

    @classmethod
    def of(cls, first: Said, second: Said, *, same_tokens: bool, seed: int, num_samples: int) -> Self:
        ours, theirs = first.documents, second.documents
        bytes_D = ours.text_bytes_D.astype(np.float64)
        of_text = PairedTest.of(ours.nats_D, theirs.nats_D, bytes_D, seed=seed, num_samples=num_samples)
        if not same_tokens:
            return cls(of_text, None, None)
        targets_D = ours.sums.num_targets_G.astype(np.float64)
        of_token, of_hits = (
            PairedTest.of(*pair_D, targets_D, seed=seed, num_samples=num_samples)
            for pair_D in (
                (ours.sums.loss_nats_G, theirs.sums.loss_nats_G),
                (ours.sums.num_top1_G.astype(np.float64), theirs.sums.num_top1_G.astype(np.float64)),
            )
        )
        return cls(of_text, of_token, of_hits)


def have_same_tokens(first: Contender, second: Contender) -> bool:
    """Return whether both tokenizers have the same special tokens and an equal tokenizer.json."""
    one, other = first.opened, second.opened
    return one.special_ids == other.special_ids and one.tokenizer.to_str() == other.tokenizer.to_str()
