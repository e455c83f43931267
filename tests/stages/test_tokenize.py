"""Claim: the shards hold every token that the stock tokenizer gives, and the same bytes however the work is divided.

A failed or stopped run leaves the outputs of the one before, and the next run goes on from its records.
"""

import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from functools import wraps
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from clozeline.cluster.ledger import Done
from clozeline.language.shards import TokenShards
from clozeline.params.reading import read_params
from clozeline.records.reading.streams import identity_of
from clozeline.records.reading.tokens import ShardPaths, documents_path
from clozeline.stages import tokenize
from clozeline.system.errors import ArtifactError, DataError, TransientError
from clozeline.system.files import sha256_of
from clozeline.tokenizing import shards
from clozeline.tokenizing.earlier_ids import EarlierIds
from clozeline.tokenizing.packing import write_document_keys
from clozeline.tokenizing.shards import ShardPiece
from tests.make.models import PROJECT
from tests.make.tasks import contents
from tests.make.texts import ALGORITHMS

_RUN = "import sys, pathlib, tests.stages.test_tokenize as here; here.run(*map(pathlib.Path, sys.argv[1:]))"
SYLLABLES = ["ka", "to", "mi", "re", "su", "lon", "ber", "eta", "nu", "ge", "shi", "vo", "tri", "ple"]


def sentences(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    words = ["".join(draw.choices(SYLLABLES, k=draw.randint(1, 4))) for _ in range(400)]
    return [" ".join(draw.choices(words, k=draw.randint(1, 60))) + "." for _ in range(count)]


TRAIN, VALIDATION = sentences(500, 1), sentences(60, 2)


def write_clean(
    folder: Path, train: Sequence[str] = TRAIN, validation: Sequence[str] = VALIDATION, row_group: int = 1000
) -> Path:
    folder.mkdir()
    for split, texts in {"train": train, "validation": validation}.items():
        table = pa.table({"doc_id": [f"{row << 23:08x}" for row in range(len(texts))], "text": list(texts)})
        pq.write_table(table, folder / f"{split}.parquet", row_group_size=row_group)
    return folder


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    return write_clean(tmp_path / "clean")


@pytest.fixture(scope="module")
def tokenized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the stage makes of `clean`; tests only look at it."""
    folder = tmp_path_factory.mktemp("tokenized")
    run(write_clean(folder / "clean"), folder / "out")
    return folder / "out"


def run(clean: Path, out: Path, start: Path | None = None, **changes: object) -> dict[str, dict[str, float]]:
    usual = read_params(PROJECT / "params.yaml").tokenize
    tokenize.run(
        usual.model_copy(update={"vocab_size": 300, "shard_tokens": 3000, **changes}),
        clean=clean,
        tokenizer=out / "tokenizer",
        out=out / "tokens",
        metrics=out / "m.json",
        work=out.with_name(f"{out.name}-work"),
        start=start,
    )
    figures: dict[str, dict[str, float]] = json.loads((out / "m.json").read_text())
    return figures


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_document_is_packed_as_stock_transformers_would_tokenize_it(
    clean: Path, tmp_path: Path, algorithm: str
) -> None:
    """P15: packed and dropped tokens add up to the input."""
    figures = run(clean, tmp_path / "out", algorithm=algorithm)
    stock, tokens = AutoTokenizer.from_pretrained(tmp_path / "out" / "tokenizer"), tmp_path / "out" / "tokens"
    for split, texts in (("train", TRAIN), ("validation", VALIDATION)):
        packed, of = TokenShards.open(tokens, split), figures[split]
        for ordinal, shard in enumerate(packed.info.splits[split].shards):
            paths = ShardPaths.of(tokens, split, ordinal)
            written = [sha256_of(path) for path in (paths.tokens, paths.offsets, paths.document_bytes)]
            assert written == [shard.tokens_sha256, shard.offsets_sha256, shard.bytes_sha256]
        assert packed.document_bytes.tolist() == [len(text.encode()) for text in texts]
        documents = [packed.document(ordinal).tolist() for ordinal in range(packed.num_documents)]
        assert documents == stock(texts, add_special_tokens=False)["input_ids"]
        assert of["tokens_in"] == of["tokens_packed"] + of["tokens_dropped"]
        assert of["tokens_packed"] == packed.num_tokens == packed.offsets[-1]
        assert of["text_bytes"] == packed.text_bytes == int(packed.document_bytes.sum())
        assert of["bytes_per_token"] == pytest.approx(packed.text_bytes / packed.num_tokens)
        used = np.unique(packed.tokens(0, packed.num_tokens))
        assert of["vocabulary_use"] == pytest.approx((used >= 5).sum() / (packed.info.vocab_size - 5))


def test_threads_processes_and_the_files_and_row_groups_of_a_split_change_no_byte(
    clean: Path, tokenized: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P17."""
    command = [sys.executable, "-c", _RUN, clean, tmp_path / "threads"]
    subprocess.run(command, cwd=PROJECT, env=os.environ | {"RAYON_NUM_THREADS": "3"}, check=True)
    table = pq.read_table(clean / "train.parquet")
    (clean / "train.parquet").unlink()
    (clean / "train.parquet").mkdir()
    for start in range(0, 500, 130):
        pq.write_table(table.slice(start, 130), clean / f"train.parquet/{start:05d}.parquet")
    run(clean, tmp_path / "several")
    grouped = write_clean(tmp_path / "grouped", row_group=16)
    monkeypatch.setattr(shards, "_PARTITION_BYTES", 1000)
    assert len(shards.partitions_of(grouped / "train.parquet")) > 1
    monkeypatch.setattr(tokenize, "_WORTH_PROCESSES", 0)
    monkeypatch.setattr("clozeline.cluster.ledger.available_cores", lambda: 2)
    run(grouped, tmp_path / "two")
    assert [contents(tmp_path / name) for name in ("threads", "several", "two")] == [contents(tokenized)] * 3


def test_a_stopped_stage_leaves_the_old_outputs_and_goes_on_from_its_records(
    clean: Path, tokenized: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    original = shards.write_shard

    @wraps(original)
    def stopped_at_the_second_shard(pieces: Sequence[ShardPiece], folder: Path) -> Done:
        if pieces[0].documents.start:
            raise TransientError("killed", given="", expected="", do="")
        return original(pieces, folder)

    caplog.set_level("INFO")
    run(clean, tmp_path / "out", vocab_size=200)
    old = contents(tmp_path / "out")
    with monkeypatch.context() as stopped:
        stopped.setattr(shards, "write_shard", stopped_at_the_second_shard)
        with pytest.raises(TransientError, match="killed"):
            run(clean, tmp_path / "out")
    assert contents(tmp_path / "out") == old
    records = {file: file.stat().st_mtime_ns for file in (tmp_path / "out-work").glob("*/*/record.json")}
    with monkeypatch.context() as keeping:
        keeping.setattr(EarlierIds, "keep", lambda *_: None)  # it removes what a later run does not need
        run(clean, tmp_path / "out")
    assert {file: file.stat().st_mtime_ns for file in records} == records, "no recorded task is repeated"
    assert contents(tmp_path / "out") == contents(tokenized)
    run(clean, tmp_path / "out")
    assert "560 of 560 texts encoded by earlier runs" in caplog.messages
    assert contents(tmp_path / "out") == contents(tokenized)


def test_validation_text_does_not_influence_the_vocabulary(tokenized: Path, tmp_path: Path) -> None:
    """A continued training keeps its tokenizer, whatever the settings."""
    run(write_clean(tmp_path / "clean", validation=["zyx wvq zyx"] * 300), tmp_path / "out")
    assert contents(tmp_path / "out" / "tokenizer") == contents(tokenized / "tokenizer")
    other = write_clean(tmp_path / "other", sentences(400, 3), sentences(40, 4))
    run(other, tmp_path / "continued", start=tokenized / "tokenizer", algorithm="bpe", vocab_size=64)
    assert contents(tmp_path / "continued" / "tokenizer") == contents(tokenized / "tokenizer")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_special_tokens_written_in_a_text_are_counted_and_packed_as_text(
    tmp_path: Path, algorithm: str, caplog: pytest.LogCaptureFixture
) -> None:
    """P10; and unknown characters are counted."""
    train = [*TRAIN, *["kato [MASK] mire [SEP]"] * 5]
    clean = write_clean(tmp_path / "clean", train, ["kato [MASK] мир", "mire"])
    figures = run(clean, tmp_path / "out", algorithm=algorithm)
    assert (figures["train"]["special_strings_in_text"], figures["validation"]["special_strings_in_text"]) == (10, 1)
    assert "contain [MASK] or another special token in 10 places" in caplog.text
    packed = TokenShards.open(tmp_path / "out" / "tokens", "train")
    assert not np.isin(packed.tokens(0, packed.num_tokens), [0, 2, 3, 4]).any()
    assert (figures["train"]["tokens_dropped"], figures["train"]["unknown_tokens"]) == (0, 0)
    if algorithm == "wordpiece":
        assert figures["validation"]["unknown_tokens"] == 1
        assert figures["validation"]["unknown_rate"] == 1 / figures["validation"]["tokens_packed"]


def test_special_tokens_that_an_existing_tokenizer_finds_in_text_are_dropped_and_counted(tmp_path: Path) -> None:
    names = ("PAD", "UNK", "MASK", "CLS", "SEP")
    given = Tokenizer(models.WordLevel({f"[{name}]": place for place, name in enumerate(names)}, "[UNK]"))
    given.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {f"{name.lower()}_token": f"[{name}]" for name in names}
    PreTrainedTokenizerFast(tokenizer_object=given, **special).save_pretrained(tmp_path / "given")
    clean = write_clean(tmp_path / "other", ["a [MASK] b [SEP]", "c", "[PAD]"], ["a"])
    train = run(clean, tmp_path / "out", algorithm="existing", existing=str(tmp_path / "given"))["train"]
    assert (train["tokens_in"], train["tokens_dropped"], train["empty_documents"]) == (6, 3, 1)
    packed = TokenShards.open(tmp_path / "out" / "tokens", "train")
    assert [packed.document(ordinal).tolist() for ordinal in range(3)] == [[1, 1], [1], []]


def test_each_document_has_a_unique_key_that_does_not_depend_on_its_place(tmp_path: Path) -> None:
    ids = [identity_of(text) for text in TRAIN]
    keys = []
    for name, order in {"rising": ids, "falling": ids[::-1]}.items():
        pq.write_table(pa.table({"doc_id": order}), tmp_path / name, row_group_size=30)
        write_document_keys(tmp_path / name, documents_path(tmp_path, name))
        keys.append(np.load(documents_path(tmp_path, name)).tolist())
    assert keys[0] == keys[1][::-1]
    assert len(set(keys[0])) == len(ids)


@pytest.mark.parametrize(
    ("content", "kind", "named"),
    [
        (None, ArtifactError, "train.parquet"),
        ({"body": ["x"]}, ArtifactError, r"columns body \(string\)"),
        ({"doc_id": ["00"], "text": [" "]}, DataError, "has no text"),
    ],
)
def test_a_split_that_cannot_be_used_is_named_and_earlier_outputs_stay(
    clean: Path, tmp_path: Path, content: dict[str, list[str]] | None, kind: type[Exception], named: str
) -> None:
    (tmp_path / "out" / "tokens").mkdir(parents=True)
    (tmp_path / "out" / "tokens" / "old").write_text("of an earlier run")
    file = clean / "train.parquet"
    pq.write_table(pa.table(content), file) if content else file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(kind, match=named):
        run(clean, tmp_path / "out")
    assert contents(tmp_path / "out") == {"tokens/old": b"of an earlier run"}
