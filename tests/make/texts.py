"""Texts, token shards and snapshots of a test's own, as the stages write them, and metric files about them."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st
from tokenizers import Tokenizer

from clozeline.cluster.ledger import passing_ledger
from clozeline.corpus.cleaning.documents import Document
from clozeline.corpus.cleaning.portions import open_snapshot, opened
from clozeline.corpus.sources.snapshots import take
from clozeline.params.text import SourceParams, TokenizeParams
from clozeline.records.clean_text import SCHEMA, CorpusMetrics, SimilarityMetrics, SplitMetrics
from clozeline.records.evaluation import EncoderMetrics
from clozeline.records.reading.streams import identity_of
from clozeline.records.reading.tokens import SplitInfo
from clozeline.records.record import NATS_PER_BYTE, PairedFigures
from clozeline.records.snapshot import MANIFEST, Earlier, Snapshot
from clozeline.records.token_metrics import SplitTokens, TokenMetrics
from clozeline.system.workers import worker_processes
from clozeline.tokenizing.shards import EncodedFiles, write_shards, writing
from clozeline.tokenizing.vocabularies import learn
from tests.tokenizing.conftest import MadeTexts


def write_clean_text(path: Path, texts: Sequence[str], row_group: int = 2**20) -> None:
    columns = [[identity_of(text) for text in texts], list(texts), ["test"] * len(texts), [""] * len(texts)]
    pq.write_table(pa.table(columns, schema=SCHEMA), path, row_group_size=row_group)


def write_documents(
    folder: Path,
    split: str,
    documents: Sequence[np.ndarray[Any, Any]],
    *,
    bytes_per_token: int,
    shard_tokens: int,
    dtype: Literal["uint16", "uint32"] = "uint16",
    partition: int = 10**9,
) -> SplitInfo:
    """Write the shards of a split from documents, `partition` of them in a partition."""
    with TemporaryDirectory() as name:
        files = []
        for start in range(0, len(documents), partition):
            files.append(EncodedFiles(Path(name) / str(start), dtype))
            files[-1].folder.mkdir()
            with writing(files[-1]) as append:
                for document in documents[start : start + partition]:
                    length = np.array([len(document)])
                    append(document, [length, length * bytes_per_token, 0 * length], [b""])
        with passing_ledger() as ledger:
            return write_shards(files, folder, split, shard_tokens, ledger)


def take_snapshot(params: SourceParams, source: Path, folder: Path, before: Path | None = None) -> Snapshot:
    """Take a snapshot into the new folder `folder`, in the order of the one in `before`."""
    folder.mkdir(parents=True)
    files = {path.relative_to(before).as_posix(): path for path in before.rglob("*")} if before else {}
    assert before is None or MANIFEST in files
    with worker_processes(1) as workers:
        return take(params, source, Earlier.among(files), folder, workers)


def documents_in(raw: Path, params: SourceParams) -> list[Document]:
    """Return the documents of a snapshot."""
    text = open_snapshot(raw, params)
    return [document for unit in opened(text.files, text.reading) for document in unit.documents()]


ODD = "=\u0338?{`aéb 東É\u0301\n\t\r\x0b\x0c\x1c\x1f\x85\xa0\u200b\u2028\u3000▁'sĠ½¨ﷺ,.(MASK]0१\ufffd\x00\U0001f600İΣς"
ALGORITHMS = ("wordpiece", "bpe", "unigram")
odd_text = st.lists(st.sampled_from([*ODD, *"    \n\nabab", "[MASK]", "[UNK]"]), max_size=30).map("".join)


def learned_tokenizer(algorithm: str, texts: Sequence[str]) -> Tokenizer:
    """Return a tokenizer of 400 tokens from `texts` and the odd characters; all but BPE lowercase their input."""
    numbers = {"vocab_size": 400, "min_frequency": 2, "shard_tokens": 5000}
    kind = {"algorithm": algorithm, "existing": None, "lowercase": algorithm != "bpe"}
    return learn(TokenizeParams.model_validate(kind | numbers), [MadeTexts([*texts, ODD, ODD])])


def corpus_metrics(*, train: int, validation: int = 0, **dropped: int) -> CorpusMetrics:
    """Return the metrics of a corpus with these numbers of kept texts, and of dropped ones by reason."""
    documents_in = train + validation + sum(dropped.values())
    pairs = {"compared_pairs": 90, "similar_pairs": 9}
    groups = {"groups": 7, "grouped_documents": 16, "largest_group": 3, "full_groups": 0}
    return CorpusMetrics(
        documents_read=documents_in,
        documents_split=3,
        added_by_splitting=0,
        documents_in=documents_in,
        kept=train + validation,
        dropped=dropped,
        splits={
            name: SplitMetrics(documents=number, characters=9 * number, bytes=10 * number, sources=2)
            for name, number in {"train": train, "validation": validation}.items()
        },
        similarity=SimilarityMetrics(**pairs, **groups),
        versions={"python": "3.11.4"},
    )


def token_metrics(*, unknown_rate: float) -> TokenMetrics:
    documents = {"documents": 800, "empty_documents": 0, "text_bytes": 16_000, "bytes_per_token": 4.0}
    tokens = {"tokens_in": 4_000, "tokens_packed": 4_000, "tokens_dropped": 0, "special_strings_in_text": 0}
    words = {"unknown_tokens": 1, "unknown_rate": unknown_rate, "vocabulary_use": 0.9}
    split = SplitTokens.model_validate(documents | tokens | words)
    return TokenMetrics(vocab_size=8192, train=split, validation=split)


def paired_figures(
    metric: str, candidate: float, champion: float, half_width: float = 0.0, **facts: object
) -> PairedFigures:
    """Return the figures of a trial on 500 items whose interval is as wide to both sides; `facts` replace fields."""
    difference = candidate - champion
    given = {
        "metric": metric,
        "candidate": candidate,
        "champion": champion,
        "low": difference - half_width,
        "high": difference + half_width,
        "num_items": 500,
        "items": "data/clean/validation.parquet",
        "items_sha256": "f" * 64,
        "champion_bytes_per_token": 4.0 if metric == NATS_PER_BYTE else None,
    }
    return PairedFigures.model_validate(given | facts)


def encoder_metrics(**changed: float) -> EncoderMetrics:
    """Return the metrics of an encoder, with `changed` figures or more of them."""
    losses = {"loss_nats_per_token": 5.0, "perplexity": 148.4, "nats_per_byte": 1.25}
    counts = {"text_bytes": 4000, "target_tokens": 1000, "contaminated_fraction": 0.0}
    shares = {"top1": 0.3, "top5": 0.5}
    unigram = {"unigram_perplexity": 900.0, "unigram_top1": 0.05, "unigram_top5": 0.1}
    given = losses | counts | shares | unigram | changed
    ends = {
        f"{name}{end}": factor * given[name]
        for name in ("loss_nats_per_token", "perplexity", "nats_per_byte", "top1")
        for end, factor in {"_low": 0.98, "_high": 1.02}.items()
    }
    return EncoderMetrics.model_validate(ends | given)
