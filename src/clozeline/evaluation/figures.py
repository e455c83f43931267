"""Figures of token prediction over a whole split: every token is a target exactly once.

The figures are sums over tokens, so they do not depend on how rows were batched (a mean of batch means does). One pass
over the split gathers all of them.

An unknown token ([UNK]) is not a target, because predicting it takes no skill. Its bytes still count, or a tokenizer
would gain by leaving hard words unknown. So `nats_per_byte` charges ln 256 nats for each of its bytes, as if they were
spelled in equally likely bytes; its text is taken to be as long as the average token of this split. The other figures
are of the targets alone.

Shapes: D documents or blocks of them, K figures.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from clozeline.artifacts.evaluate.encoder_metrics import NATS_PER_UNKNOWN_BYTE, TextFigures
from clozeline.errors import DataError
from clozeline.evaluation.asking import Asked
from clozeline.evaluation.bootstrap import ratio_intervals
from clozeline.evaluation.groupings import Grouping
from clozeline.evaluation.judged import Sums, judge
from clozeline.language_modelling import language_model
from clozeline.language_modelling.language_model import LanguageModel
from clozeline.processes.group import ALONE, Group
from clozeline.tokens.shards import TokenShards

MOST_BLOCKS = 4096
"""Largest number of blocks. Documents whose ordinals differ by a multiple of it share a block: memory is bounded."""


def measure(
    model: LanguageModel,
    questions: Iterable[Asked],
    groupings: Mapping[str, Grouping],
    advance: Callable[[int], None],
    group: Group = ALONE,
) -> dict[str, Sums]:
    """Run all `questions` and sum the answers by each of `groupings`; call `advance` with the row count of each batch.

    Each process of `group` has other questions, and gets the sums over all of them.
    """
    sums = {name: Sums.zero(grouping.num_groups) for name, grouping in groupings.items()}
    for asked in questions:
        if len(asked.target_T):
            batch = asked.batch.to(group.device)
            judged = judge(language_model.target_logits(model, batch), batch.labels_T)
            for name, grouping in groupings.items():
                sums[name].add(grouping.groups(asked, judged), judged)
        advance(asked.num_rows)
    return {name: of_process.over(group) for name, of_process in sums.items()}


@dataclass(frozen=True)
class DocumentSums:
    """Sums behind the figures, by document or block of documents."""

    sums: Sums
    num_tokens_D: NDArray[np.int64]
    text_bytes_D: NDArray[np.int64]

    @classmethod
    def of(cls, shards: TokenShards, sums: Sums) -> Self:
        """Add the tokens and bytes of `shards` to `sums`, which are grouped by `ByDocument`."""
        num_groups = len(sums.num_targets_G)
        group_D = np.arange(shards.num_documents) % num_groups

        def grouped(values_D: NDArray[np.int64]) -> NDArray[np.int64]:
            return np.bincount(group_D, values_D, minlength=num_groups).astype(np.int64)

        offsets = shards.offsets.astype(np.int64)
        lengths_D = offsets[1:] - offsets[:-1]
        return cls(sums, grouped(lengths_D), grouped(shards.document_bytes.astype(np.int64)))

    @property
    def unknown_D(self) -> NDArray[np.int64]:
        return self.num_tokens_D - self.sums.num_targets_G

    @property
    def nats_D(self) -> NDArray[np.float64]:
        """Nats of all the text: the loss of its targets, and the charge for its unknown tokens."""
        bytes_per_token = self.text_bytes_D.sum() / max(self.num_tokens_D.sum(), 1)
        nats_D: NDArray[np.float64] = self.sums.loss_nats_G + NATS_PER_UNKNOWN_BYTE * bytes_per_token * self.unknown_D
        return nats_D


class Figures(TextFigures):
    """Figures of one model on one split."""

    unknown_tokens: int
    """Number of [UNK] tokens; they are not targets."""
    validation_tokens: int
    """Targets and unknown tokens."""
    validation_documents: int

    @classmethod
    def of(cls, documents: DocumentSums, num_documents: int, *, seed: int, num_samples: int) -> Self:
        """Return the figures of some documents with their intervals.

        Raises:
            DataError: the documents hold no target.
        """
        sums = documents.sums
        text_bytes = int(documents.text_bytes_D.sum())
        if not sums.num_targets:
            raise DataError(
                f"all {int(documents.num_tokens_D.sum()):,} tokens in {text_bytes:,} bytes of text are unknown",
                do="give more text, or text similar to what the tokenizer was trained on",
            )
        numerators_DK = np.stack([sums.loss_nats_G, sums.num_top1_G, documents.nats_D], axis=1)
        denominators_DK = np.stack([sums.num_targets_G, sums.num_targets_G, documents.text_bytes_D], axis=1)
        low_K, high_K = ratio_intervals(
            numerators_DK, denominators_DK.astype(np.float64), seed=seed, num_samples=num_samples
        ).tolist()
        loss_nats = float(sums.loss_nats_G.sum())
        loss = loss_nats / sums.num_targets
        return cls(
            loss_nats_per_token=loss,
            loss_nats_per_token_low=low_K[0],
            loss_nats_per_token_high=high_K[0],
            perplexity=math.exp(loss),
            perplexity_low=math.exp(low_K[0]),
            perplexity_high=math.exp(high_K[0]),
            top1=int(sums.num_top1_G.sum()) / sums.num_targets,
            top1_low=low_K[1],
            top1_high=high_K[1],
            top5=int(sums.num_top5_G.sum()) / sums.num_targets,
            nats_per_byte=float(documents.nats_D.sum()) / text_bytes,
            nats_per_byte_low=low_K[2],
            nats_per_byte_high=high_K[2],
            text_bytes=text_bytes,
            target_tokens=sums.num_targets,
            unknown_tokens=int(documents.unknown_D.sum()),
            validation_tokens=int(documents.num_tokens_D.sum()),
            validation_documents=num_documents,
        )


def expected_calibration_error(by_confidence: Sums) -> float:
    """Return the expected calibration error over bins of equal width (Guo et al. 2017, equation 3)."""
    gap = np.abs(by_confidence.num_top1_G - by_confidence.confidence_G).sum()
    return float(gap / by_confidence.num_targets)
