"""BLiMP and other minimal pairs: does a model give the acceptable sentence the higher probability?

Warstadt et al. 2020, "BLiMP: The benchmark of linguistic minimal pairs for English"; masked models by
pseudo-log-likelihood (Salazar et al. 2020, section 4.2), causal ones by log-likelihood.

Shapes: P pairs.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from clozeline.evaluation.measuring import DocumentSums
from clozeline.records.reading import files, streams
from clozeline.system.errors import DataError

_PATTERN = "**/*.jsonl*"


class MinimalPair(BaseModel):
    """A line of BLiMP, by its names."""

    model_config = ConfigDict(frozen=True, strict=True, str_min_length=1)

    sentence_good: str
    sentence_bad: str
    # Paradigm: 1,000 pairs in one file of BLiMP. Several paradigms make a phenomenon.
    UID: str
    linguistics_term: str  # phenomenon
    field: str  # field of linguistics: morphology, syntax, semantics, or an overlap of them


def read_pairs(path: Path) -> list[MinimalPair]:
    """Read the pairs of a JSON Lines file, or of all such files below a folder, compressed or not.

    Raises:
        DataError: there are no pairs, or a line is not a pair; the message names the file and line.
    """
    pairs = [pair for file in files.matching_files(path, _PATTERN) for pair in _pairs_of(file)] if path.exists() else []
    if not pairs:
        raise DataError(
            f"{path}: there are no minimal pairs, but {'no lines' if path.exists() else 'no such file or folder'}",
            do="give the folder of BLiMP's files: JSON Lines (.jsonl, .jsonl.gz), one pair per line",
        )
    return pairs


def sentences(pairs: Sequence[MinimalPair]) -> Iterator[str]:
    """Yield the good and the bad sentence of each pair in turn."""
    for pair in pairs:
        yield pair.sentence_good
        yield pair.sentence_bad


@dataclass(frozen=True)
class Verdicts:
    """Minimal pairs on which the model agrees with human judgements."""

    is_right_P: NDArray[np.bool_]
    # Ties, counted as errors; most often the tokenizer does not distinguish the two sentences.
    is_tie_P: NDArray[np.bool_]

    @classmethod
    def of(cls, documents: DocumentSums) -> Self:
        """Judge the pairs whose `sentences` are `documents`, one document each."""
        good_P, bad_P = documents.nats_D[0::2], documents.nats_D[1::2]
        is_tie_P = np.isclose(good_P, bad_P, rtol=1e-6)
        return cls((good_P < bad_P) & ~is_tie_P, is_tie_P)


@dataclass(frozen=True)
class Accuracy:
    name: str
    num_pairs: int
    num_ties: int
    accuracy: float

    @classmethod
    def of(cls, name: str, verdicts: Verdicts, chosen_P: NDArray[np.bool_]) -> Self:
        right_P = verdicts.is_right_P[chosen_P]
        return cls(name, len(right_P), int(verdicts.is_tie_P[chosen_P].sum()), float(right_P.mean()))


@dataclass(frozen=True)
class BlimpFigures:
    accuracy: float  # mean over paradigms, as in BLiMP; chance is 0.5
    overall: Accuracy
    phenomena: tuple[Accuracy, ...]
    paradigms: tuple[Accuracy, ...]

    @classmethod
    def of(cls, pairs: Sequence[MinimalPair], verdicts: Verdicts) -> Self:
        phenomena = _by_name([pair.linguistics_term for pair in pairs], verdicts)
        paradigms = _by_name([pair.UID for pair in pairs], verdicts)
        overall = Accuracy.of("all pairs", verdicts, np.ones(len(pairs), dtype=bool))
        return cls(float(np.mean([found.accuracy for found in paradigms])), overall, phenomena, paradigms)


def _by_name(names: Sequence[str], verdicts: Verdicts) -> tuple[Accuracy, ...]:
    name_P = np.array(names)
    return tuple(Accuracy.of(name, verdicts, name_P == name) for name in np.unique(name_P).tolist())


def _pairs_of(file: Path) -> Iterator[MinimalPair]:
    with closing(streams.read_lines(file)) as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                yield MinimalPair.model_validate_json(line)
            except ValidationError as error:
                raise DataError(
                    f"{file}, line {number} is not a minimal pair: {line.strip()[:160]}",
                    do=f"write the strings {', '.join(MinimalPair.model_fields)} as a JSON object, or remove the line",
                ) from error
