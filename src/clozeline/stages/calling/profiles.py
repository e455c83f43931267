"""Profiles of what a training reads: of the corpus, and of the labelled data of each task.

That of a corpus: its size, the texts that were dropped, scripts, language, lengths and unknown tokens. All but size and
drops are those of a sample of the training split, so that the cost does not grow with the text. That of a task:
classes, conflicts, and the rows of the test split; pairs of texts have none, because copies of a scored pair may
differ, and a matching pair has no label.
"""

import hashlib
import heapq
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Self, TypeVar

import numpy as np
import pyarrow.parquet as pq

from clozeline.language.shards import TokenShards
from clozeline.params.tasks import FinetuneParams
from clozeline.records.clean_text import TEXT, CorpusMetrics, files_in
from clozeline.records.record import Record
from clozeline.records.token_metrics import TokenMetrics
from clozeline.tasks.formats import record_format, task_records

Thing = TypeVar("Thing")
_MOST_TEXTS = 2_000
_MOST_ROW_GROUPS = 64
# Number of characters of a text in which scripts and trigrams are counted.
_MOST_CHARACTERS = 1_000
_MOST_TRIGRAMS = 400
# Upper bounds of the share of unknown tokens of a text.
_UNKNOWN_BOUNDS = {"0": 0.0, "1/256": 1 / 256, "1/64": 1 / 64, "1/16": 1 / 16, "1/4": 1 / 4, "1": 1.0}
_WORD = re.compile(r"[^\W\d_]+")
_SHARE_DECIMALS = 6


class TextProfile(Record, extra="ignore"):
    """Figures of one snapshot of the text."""

    documents: int  # number of documents that were read, before any was dropped
    kept: int
    dropped_shares: Mapping[str, float]  # reason → share of the documents that were read, 0-1
    script_shares: Mapping[str, float]  # script, such as LATIN → share of the letters
    # Shares of the most frequent character trigrams of words; a language is recognized by them.
    trigram_shares: Mapping[str, float]
    texts_by_length: Mapping[str, int]  # sampled texts by upper bound of their length in characters, a power of 2
    unknown_rate: float  # share of unknown tokens in the training split, 0-1
    # Sampled texts by upper bound of their share of unknown tokens, a key of `_UNKNOWN_BOUNDS`.
    texts_by_unknown: Mapping[str, int] = {}

    @classmethod
    def of_files(cls, *, preprocess: Path, tokenize: Path, train: Path, tokens: Path) -> Self:
        """Return the profile of the text with these metric files, training split (Parquet) and token shards.

        Raises:
            ArtifactError: a metric file is missing or lacks a figure, or a shard is missing or damaged.
        """
        corpus, token_metrics = CorpusMetrics.read(preprocess), TokenMetrics.read(tokenize)
        total = max(corpus.documents_in, 1)
        lengths: Counter[int] = Counter()
        characters: Counter[str] = Counter()
        trigrams: Counter[str] = Counter()
        for text in sample_of(train):
            lengths[1 << (len(text) - 1).bit_length()] += 1
            words = _WORD.findall(text[:_MOST_CHARACTERS].lower())
            characters.update("".join(words))
            trigrams.update(framed[i : i + 3] for word in words for framed in [f" {word} "] for i in range(len(word)))
        scripts: Counter[str] = Counter()
        for character, count in characters.items():
            scripts[script_of(character)] += count
        return cls(
            documents=corpus.documents_in,
            kept=corpus.kept,
            dropped_shares={reason: count / total for reason, count in corpus.dropped.items()},
            script_shares=_shares(scripts, len(scripts)),
            trigram_shares=_shares(trigrams, _MOST_TRIGRAMS),
            texts_by_length={str(bound): lengths[bound] for bound in sorted(lengths)},
            unknown_rate=token_metrics.train.unknown_rate,
            texts_by_unknown=_texts_by_unknown(TokenShards.open(tokens, "train")),
        )

    @property
    def num_sampled(self) -> int:
        return sum(self.texts_by_length.values())

    def language_similarity(self, other: "TextProfile") -> float:
        """Return the cosine of the trigram profiles: near 1 for the same language, near 0 for another script."""
        names = sorted({*self.trigram_shares, *other.trigram_shares})
        one, two = (np.array([it.trigram_shares.get(name, 0.0) for name in names]) for it in (self, other))
        lengths = float(np.linalg.norm(one) * np.linalg.norm(two))
        return float(one @ two) / lengths if lengths else 1.0


def sample_of(path: Path) -> Iterator[str]:
    """Yield about 2,000 texts of a split, evenly spread over it."""
    with ExitStack() as opened:
        files = [opened.enter_context(pq.ParquetFile(file)) for file in _some_of(files_in(path))]
        chosen = _some_of([(file, group) for file in files for group in range(file.num_row_groups)])
        stride = max(sum(file.metadata.row_group(group).num_rows for file, group in chosen) // _MOST_TEXTS, 1)
        for file, group in chosen:
            texts = file.read_row_group(group, columns=[TEXT]).column(TEXT)
            yield from texts.take(np.arange(0, len(texts), stride)).to_pylist()


def _some_of(every: Sequence[Thing]) -> list[Thing]:
    """Return `_MOST_ROW_GROUPS` things at most, evenly spread."""
    places = np.unique(np.linspace(0, max(len(every) - 1, 0), _MOST_ROW_GROUPS).astype(int)).tolist()
    return [every[place] for place in places[: len(every)]]


def _texts_by_unknown(shards: TokenShards) -> dict[str, int]:
    """Count about 2,000 documents, evenly spread over the shards, by their share of unknown tokens."""
    stride = max(shards.num_documents // _MOST_TEXTS, 1)
    documents = (shards.document(ordinal) for ordinal in range(0, shards.num_documents, stride))
    shares = [float((tokens == shards.info.special_ids.unk).mean()) for tokens in documents if len(tokens)]
    counts = np.bincount(np.searchsorted([*_UNKNOWN_BOUNDS.values()], shares), minlength=len(_UNKNOWN_BOUNDS))
    return {name: int(count) for name, count in zip(_UNKNOWN_BOUNDS, counts, strict=True) if count}


@cache
def script_of(letter: str) -> str:
    """Return the first word of the letter's name in Unicode, which is its script."""
    return unicodedata.name(letter, "UNKNOWN").split()[0]


def _shares(counts: Counter[str], most: int) -> dict[str, float]:
    total = max(sum(counts.values()), 1)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:most]
    return {name: round(count / total, _SHARE_DECIMALS) for name, count in ordered}


_MOST_TEST_ROWS = 2_000
_DIGEST_CHARACTERS = 16


class LabelProfile(Record, extra="ignore"):
    """Figures of the labelled texts of one task."""

    num_texts: int  # number of distinct texts with labels
    num_conflicts: int  # number of texts whose copies have different labels
    texts_by_label: Mapping[str, int]
    # Digest of a text of the test split → digest of its labels; the 2,000 lowest digests if there are more.
    test_rows: Mapping[str, str]

    @classmethod
    def of_data(cls, params: FinetuneParams, data: Path) -> Self | None:
        """Return the profile of a task's data; None if its kind of task has no labels.

        Raises:
            DataError: a file cannot be read.
        """
        labels: dict[str, set[tuple[str, ...]]] = {}
        classes: dict[str, tuple[str, ...]] = {}
        is_test: dict[str, bool] = {}
        labelled = record_format(params).labelled
        if labelled is None:
            return None
        for given, record in task_records(params, data):
            if item := labelled(record, given):
                labels.setdefault(item.identity, set()).add(item.labels)
                classes[item.identity] = item.classes
                is_test[item.identity] = is_test.get(item.identity, False) or item.part == "test"
        clean = {identity: next(iter(sets)) for identity, sets in labels.items() if len(sets) == 1}
        rows = {_digest(identity): _digest("\n".join(clean[identity])) for identity in clean if is_test[identity]}
        return cls(
            num_texts=len(labels),
            num_conflicts=len(labels) - len(clean),
            texts_by_label=dict(sorted(Counter(name for identity in clean for name in classes[identity]).items())),
            test_rows={row: rows[row] for row in heapq.nsmallest(_MOST_TEST_ROWS, rows)},
        )

    @property
    def conflict_share(self) -> float:
        return self.num_conflicts / max(self.num_texts, 1)

    def changed_test_rows(self, accepted: "LabelProfile") -> float:
        """Return the share of the accepted test rows that are gone or have other labels now.

        Rows that a growing test split pushes out of the lowest digests are not counted.
        """
        last = max(self.test_rows, default="") if len(self.test_rows) == _MOST_TEST_ROWS else "g"
        compared = [row for row in accepted.test_rows if row <= last]
        changed = sum(self.test_rows.get(row) != accepted.test_rows[row] for row in compared)
        return changed / max(len(compared), 1)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARACTERS]
