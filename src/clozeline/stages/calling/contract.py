"""contract.lock: profiles of the data that the last accepted run was trained on, compared with those of a new run.

The check comes before a training starts, and records what it accepted. It belongs to the command of a stage, not to its
code: it changes no output, so an edit of it re-runs nothing.

The profile of a corpus is its size, the texts that were dropped, scripts, language, lengths and unknown tokens. All but
size and drops are those of a sample of the training split, so that the cost does not grow with the text. That of a
task: classes, conflicts, and the rows of the test split; pairs of texts have none, because copies of a scored pair may
differ, and a matching pair has no label.
"""

import hashlib
import heapq
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Self, TypeVar

import numpy as np
import pyarrow.parquet as pq

from clozeline.language.shards import TokenShards
from clozeline.params.project import Params
from clozeline.params.tasks import FinetuneParams
from clozeline.params.text import ContractParams
from clozeline.records.clean_text import TEXT, CorpusMetrics, file_of, files_in
from clozeline.records.finetune.statistics import stability_index
from clozeline.records.record import Limit, Lock, Record
from clozeline.records.token_metrics import TokenMetrics
from clozeline.system import errors, files
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
FILE = "contract.lock"
_LAST = "last accepted {}"
_NO_LABELS: Mapping[str, "LabelProfile"] = {}
# Increase of the share of documents dropped for one reason.
MAX_DROPPED_INCREASE = 0.2
# Change of the share of letters of one script, such as Latin.
MAX_SCRIPT_SHIFT = 0.1
# Cosine of the frequencies of character trigrams; that of another language is below 0.6.
MIN_LANGUAGE_SIMILARITY = 0.7
# Population stability index of the lengths of texts; 0.25 is usually called a large shift.
MAX_LENGTH_INDEX = 0.25
# Population stability index of the shares of unknown tokens of texts, if their share of all has grown.
MAX_UNKNOWN_INDEX = 0.1
# Share of labelled texts whose copies have different labels.
MAX_CONFLICT_SHARE = 0.05
# Population stability index of the classes of labelled texts.
MAX_CLASS_INDEX = 0.25
# Least number of sampled or labelled texts for a comparison of distributions: with fewer, the stability index is noise.
_LEAST_TEXTS = 200


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
        for given, one in task_records(params, data):
            if item := labelled(one, given):
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


class Accepted(Record, extra="ignore"):
    """Content of contract.lock. It belongs in git, beside dvc.lock."""

    text: TextProfile | None = None
    labels: Mapping[str, LabelProfile] = {}  # profile of the labelled data by task

    @classmethod
    def in_project(cls, root: Path) -> Self:
        """Read the file of the project in `root`; return an empty record if it is missing.

        Raises:
            ArtifactError: the file is damaged.
        """
        do = "restore it (`git checkout contract.lock`), or remove it to accept the data of the next run"
        return cls.read(root / FILE, absent=cls(), do=do)

    @classmethod
    def add(
        cls, root: Path, *, text: TextProfile | None = None, labels: Mapping[str, LabelProfile] = _NO_LABELS
    ) -> None:
        """Add profiles to the file, or replace them. Stages that run side by side add one after the other."""
        lock = root / "work" / "contract.alone"
        lock.parent.mkdir(exist_ok=True)
        with files.alone(lock):
            before = cls.in_project(root)
            cls(text=text or before.text, labels={**before.labels, **labels}).write(root / FILE, indent=1)


def text_limits(params: ContractParams, now: TextProfile, accepted: TextProfile | None) -> Iterator[Limit]:
    """Yield the limits of the text; without accepted text, only those that need none."""
    yield Limit.at_least("documents", now.documents, params.min_documents)
    if params.max_documents is not None:
        yield Limit.at_most("documents", now.documents, params.max_documents)
    if accepted is None:
        return
    least = (1 - params.max_missing_share) * accepted.documents
    yield Limit.at_least("documents", now.documents, least, note=_LAST.format(f"{accepted.documents:,}"))
    for reason, share in now.dropped_shares.items():
        was = accepted.dropped_shares.get(reason, 0.0)
        most, note = was + MAX_DROPPED_INCREASE, _LAST.format(f"{was:.4f}")
        yield Limit.at_most(f"share dropped as {reason}", share, most, note=note)
    if min(now.num_sampled, accepted.num_sampled) < _LEAST_TEXTS:
        return
    for script in sorted({*now.script_shares, *accepted.script_shares}):
        share, was = now.script_shares.get(script, 0.0), accepted.script_shares.get(script, 0.0)
        note = _LAST.format(f"{was:.4f}")
        yield Limit.at_most(f"change of the share of {script} letters", abs(share - was), MAX_SCRIPT_SHIFT, note=note)
    similarity = now.language_similarity(accepted)
    yield Limit.at_least("similarity of character trigrams", similarity, MIN_LANGUAGE_SIMILARITY)
    index = stability_index(accepted.texts_by_length, now.texts_by_length)
    yield Limit.at_most("stability index of lengths", index, MAX_LENGTH_INDEX)
    if accepted.texts_by_unknown and now.unknown_rate > accepted.unknown_rate:  # fewer are no fault
        index = stability_index(accepted.texts_by_unknown, now.texts_by_unknown)
        note = f"{accepted.unknown_rate:.2%} of all tokens before, {now.unknown_rate:.2%} now"
        yield Limit.at_most("stability index of unknown tokens by text", index, MAX_UNKNOWN_INDEX, note=note)


def label_limits(params: ContractParams, now: LabelProfile, accepted: LabelProfile | None) -> Iterator[Limit]:
    """Yield the limits of the labels of a task."""
    yield Limit.at_most("share of texts with conflicting labels", now.conflict_share, MAX_CONFLICT_SHARE)
    if accepted is None:
        return
    if min(now.num_texts, accepted.num_texts) >= _LEAST_TEXTS:
        index = stability_index(accepted.texts_by_label, now.texts_by_label)
        yield Limit.at_most("stability index of classes", index, MAX_CLASS_INDEX)
    changed, most = now.changed_test_rows(accepted), params.max_changed_test_rows
    yield Limit.at_most("share of accepted test rows that are gone or relabelled", changed, most)


@contextmanager
def under_contract(stage: str, task: str | None, data: Path | None, params: Params, root: Path) -> Iterator[None]:
    """Check the data of a training before the block, and record them as accepted after it.

    `pretrain` checks the text, `finetune` the labels of its task. Any other stage has no contract.

    Raises:
        ContractError: the data break the contract; nothing was trained.
        ArtifactError: contract.lock is damaged.
    """
    if stage == "pretrain":
        text = _text_profile(root)
        if text is not None:
            _require("the text", text_limits(params.contract, text, Accepted.in_project(root).text))
        yield
        if text is not None:
            Accepted.add(root, text=text)
        return
    section = params.finetune.get(task or "") if stage == "finetune" else None
    labels = None
    if data is not None and section is not None and section.hub is None:
        labels = LabelProfile.of_data(section, root / data)
    if task is None or labels is None:
        yield
        return
    known = Accepted.in_project(root).labels.get(task)
    _require(f"the labels of task `{task}`", label_limits(params.contract, labels, known))
    yield
    Accepted.add(root, labels={task: labels})


def _text_profile(root: Path) -> TextProfile | None:
    """Return the profile of the text that the stages have made; None if dvc.lock does not name its files."""
    if not (root / "dvc.lock").is_file():
        return None
    stages = Lock.read(root / "dvc.lock").stages
    if not {"preprocess", "tokenize"} <= set(stages):
        return None
    preprocess, tokenize = stages["preprocess"], stages["tokenize"]
    return TextProfile.of_files(
        preprocess=root / preprocess.argument("metrics"),
        tokenize=root / tokenize.argument("metrics"),
        train=file_of(root / preprocess.argument("out"), "train"),
        tokens=root / tokenize.argument("out"),
    )


def _require(what: str, limits: Iterator[Limit]) -> None:
    if found := [limit for limit in limits if not limit.is_passed]:
        raise errors.ContractError(
            f"{what} differs too much from what the last accepted run was trained on: nothing is trained",
            given="\n         ".join(map(str, found)),
            do=f"check the source; if the data are right, remove {FILE} (or change `contract`) and run again",
        )
