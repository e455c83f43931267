"""Claim: shards hold every token of every document, learned from the training part alone, the same bytes each time."""

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
from clozeline.params.text import TokenizeParams
from clozeline.records.reading.streams import identity_of
from clozeline.records.reading.tokens import ShardPaths, TokensInfo, documents_path
from clozeline.stages import tokenize
from clozeline.system.content import sha256_of
from clozeline.system.errors import ArtifactError, DataError, TransientError
from clozeline.tokenizing import shards
from clozeline.tokenizing.earlier_ids import EarlierIds
from clozeline.tokenizing.packing import write_document_keys
from clozeline.tokenizing.shards import ShardPiece
from tests.make.models import PROJECT
from tests.make.tasks import contents

_RUN = "import sys, pathlib, tests.stages.test_tokenize as here; here.run(*map(pathlib.Path, sys.argv[1:]))"

SYLLABLES = ["ka", "to", "mi", "re", "su", "lon", "ber", "eta", "nu", "ge", "shi", "vo", "tri", "ple"]


def sentences(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    words = ["".join(draw.choices(SYLLABLES, k=draw.randint(1, 4))) for _ in range(400)]
    return [" ".join(draw.choices(words, k=draw.randint(1, 60))) + "." for _ in range(count)]


def write_clean(folder: Path, *, train: Sequence[str], validation: Sequence[str], row_group: int = 1000) -> Path:
    folder.mkdir()
    for split, texts in {"train": train, "validation": validation}.items():
        columns = {
            "doc_id": [f"{row << 23:08x}" for row in range(len(texts))],
            "text": list(texts),
            "source": ["x"] * len(texts),
            "title": [""] * len(texts),
        }
        table = pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()})
        pq.write_table(table, folder / f"{split}.parquet", row_group_size=row_group)
    return folder


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    return write_clean(tmp_path / "clean", train=sentences(500, 1), validation=sentences(60, 2))


@pytest.fixture(scope="module")
def tokenized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the stage makes of `clean`; tests only look at it."""
    folder = tmp_path_factory.mktemp("tokenized")
    run(write_clean(folder / "clean", train=sentences(500, 1), validation=sentences(60, 2)), folder / "out")
    return folder / "out"


def params(**changes: object) -> TokenizeParams:
    usual = read_params(PROJECT / "params.yaml").tokenize
    return usual.model_copy(update={"vocab_size": 300, "shard_tokens": 3000, **changes})


def run(clean: Path, out: Path, **changes: object) -> dict[str, dict[str, float]]:
    tokenize.run(
        params(**changes),
        clean=clean,
        tokenizer=out / "tokenizer",
        out=out / "tokens",
        metrics=out / "m.json",
        work=out.with_name(f"{out.name}-work"),
    )
    figures: dict[str, dict[str, float]] = json.loads((out / "m.json").read_text())
    return figures


@pytest.mark.parametrize("algorithm", ["wordpiece", "bpe", "unigram"])
def test_every_document_is_packed_as_stock_transformers_would_tokenize_it(
    clean: Path, tmp_path: Path, algorithm: str
) -> None:
    run(clean, tmp_path / "out", algorithm=algorithm)
    stock = AutoTokenizer.from_pretrained(tmp_path / "out" / "tokenizer")
    for split in ("train", "validation"):
        texts = pq.read_table(clean / f"{split}.parquet")["text"].to_pylist()
        packed = TokenShards.open(tmp_path / "out" / "tokens", split)
        for ordinal, shard in enumerate(packed.info.splits[split].shards):
            paths = ShardPaths.of(tmp_path / "out" / "tokens", split, ordinal)
            written = [sha256_of(path) for path in (paths.tokens, paths.offsets, paths.document_bytes)]
            assert written == [shard.tokens_sha256, shard.offsets_sha256, shard.bytes_sha256]
        assert packed.num_documents == len(texts)
        assert packed.document_bytes.tolist() == [len(text.encode()) for text in texts]
        for ordinal, text in enumerate(texts):
            assert packed.document(ordinal).tolist() == stock(text, add_special_tokens=False)["input_ids"]


def test_a_split_in_several_files_gives_the_tokens_of_one_file(clean: Path, tokenized: Path, tmp_path: Path) -> None:
    table = pq.read_table(clean / "train.parquet")
    (clean / "train.parquet").unlink()
    (clean / "train.parquet").mkdir()
    for start in range(0, 500, 130):
        pq.write_table(table.slice(start, 130), clean / f"train.parquet/{start:05d}.parquet")
    run(clean, tmp_path / "several")
    assert contents(tmp_path / "several") == contents(tokenized)


def test_packed_and_dropped_tokens_add_up_to_the_input(tokenized: Path) -> None:
    figures = json.loads((tokenized / "m.json").read_text())
    for split in ("train", "validation"):
        packed = TokenShards.open(tokenized / "tokens", split)
        of = figures[split]
        assert of["tokens_in"] == of["tokens_packed"] + of["tokens_dropped"]
        assert of["tokens_packed"] == packed.num_tokens == packed.offsets[-1]
        assert of["text_bytes"] == packed.text_bytes == int(packed.document_bytes.sum())
        assert of["bytes_per_token"] == pytest.approx(packed.text_bytes / packed.num_tokens)
        used = np.unique(packed.tokens(0, packed.num_tokens))
        assert of["vocabulary_use"] == pytest.approx((used >= 5).sum() / 295)


def test_two_runs_on_any_number_of_threads_write_the_same_bytes(clean: Path, tokenized: Path, tmp_path: Path) -> None:
    for num_threads in (1, 3):
        out = tmp_path / str(num_threads)
        subprocess.run(
            [sys.executable, "-c", _RUN, clean, out],
            cwd=PROJECT,
            env=os.environ | {"RAYON_NUM_THREADS": str(num_threads)},
            check=True,
        )
    assert contents(tmp_path / "1") == contents(tmp_path / "3") == contents(tokenized)


def test_row_groups_of_the_parquet_file_and_processes_change_no_byte(
    tokenized: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {"train": sentences(500, 1), "validation": sentences(60, 2)}
    for row_group in (7, 16):
        clean = write_clean(tmp_path / f"clean{row_group}", row_group=row_group, **texts)
        run(clean, tmp_path / f"out{row_group}")
        assert contents(tmp_path / f"out{row_group}") == contents(tokenized)
    monkeypatch.setattr(shards, "_PARTITION_BYTES", 1000)
    assert len(shards.partitions_of(clean / "train.parquet")) > 1
    monkeypatch.setattr(tokenize, "_WORTH_PROCESSES", 0)
    monkeypatch.setattr("clozeline.cluster.ledger.available_cores", lambda: 2)
    run(clean, tmp_path / "two")
    assert contents(tmp_path / "two") == contents(tokenized)


def stopped_at_the_second_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    @wraps(shards.write_shard)
    def write_shard(pieces: Sequence[ShardPiece], folder: Path) -> Done:
        if pieces[0].documents.start:
            raise TransientError("killed", given="", expected="", do="")
        return original(pieces, folder)

    original = shards.write_shard
    monkeypatch.setattr(shards, "write_shard", write_shard)


def test_a_worker_that_dies_leaves_nothing_half_written(
    clean: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(clean, tmp_path / "out")
    before = contents(tmp_path / "out")
    stopped_at_the_second_shard(monkeypatch)
    with pytest.raises(TransientError, match="killed"):
        run(clean, tmp_path / "out", vocab_size=200)
    assert contents(tmp_path / "out") == before


def test_a_stopped_stage_goes_on_without_repeating_a_recorded_task(
    clean: Path, tokenized: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def written() -> dict[str, int]:
        records = (tmp_path / "out-work").glob("*/*/record.json")
        return {str(file): file.stat().st_mtime_ns for file in records}

    with monkeypatch.context() as stopped:
        stopped_at_the_second_shard(stopped)
        with pytest.raises(TransientError):
            run(clean, tmp_path / "out")
    before = written()
    kinds = {json.loads(Path(file).read_text())["function"].rpartition(".")[2] for file in before}
    assert kinds == {"count_partition", "count_bucket", "encode_partition", "write_shard"}
    monkeypatch.setattr(EarlierIds, "keep", lambda *_: None)  # it removes what a later run does not need
    run(clean, tmp_path / "out")
    after = written()
    assert len(after) > len(before)
    assert {file: after[file] for file in before} == before
    assert contents(tmp_path / "out") == contents(tokenized)


def test_validation_text_does_not_influence_the_vocabulary(tmp_path: Path) -> None:
    train = sentences(400, 1)
    for name, validation in {"one": sentences(40, 2), "two": ["zyx wvq zyx"] * 300}.items():
        run(write_clean(tmp_path / name, train=train, validation=validation), tmp_path / f"out-{name}")
    one, two = (contents(tmp_path / f"out-{name}" / "tokenizer") for name in ("one", "two"))
    assert one == two


@pytest.mark.parametrize("algorithm", ["wordpiece", "bpe", "unigram"])
def test_special_tokens_written_in_a_text_are_counted_and_packed_as_text(
    tmp_path: Path, algorithm: str, caplog: pytest.LogCaptureFixture
) -> None:
    """P10."""
    train = [*sentences(400, 1), *["kato [MASK] mire [SEP]"] * 5]
    clean = write_clean(tmp_path / "clean", train=train, validation=["kato [PAD]", "mire"])
    figures = run(clean, tmp_path / "out", algorithm=algorithm)
    assert (figures["train"]["special_strings_in_text"], figures["validation"]["special_strings_in_text"]) == (10, 1)
    assert "contain [MASK] or another special token in 10 places" in caplog.text
    packed = TokenShards.open(tmp_path / "out" / "tokens", "train")
    assert not np.isin(packed.tokens(0, packed.num_tokens), [0, 2, 3, 4]).any()
    assert figures["train"]["tokens_dropped"] == 0


def test_special_tokens_that_an_existing_tokenizer_finds_in_text_are_dropped_and_counted(
    tmp_path: Path,
) -> None:
    given = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "[MASK]": 2, "[CLS]": 3, "[SEP]": 4}, "[UNK]"))
    given.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {f"{name.lower()}_token": f"[{name}]" for name in ("PAD", "UNK", "MASK", "CLS", "SEP")}
    PreTrainedTokenizerFast(tokenizer_object=given, **special).save_pretrained(tmp_path / "given")
    clean = write_clean(tmp_path / "other", train=["a [MASK] b [SEP]", "c", "[PAD]"], validation=["a"])
    figures = run(clean, tmp_path / "out", algorithm="existing", existing=str(tmp_path / "given"))
    assert (figures["train"]["tokens_in"], figures["train"]["tokens_dropped"]) == (6, 3)
    assert figures["train"]["empty_documents"] == 1
    packed = TokenShards.open(tmp_path / "out" / "tokens", "train")
    assert [packed.document(ordinal).tolist() for ordinal in range(3)] == [[1, 1], [1], []]


def test_a_tokenizer_trained_here_can_be_used_for_another_corpus(clean: Path, tokenized: Path, tmp_path: Path) -> None:
    run(clean, tmp_path / "second", algorithm="existing", existing=str(tokenized / "tokenizer"), vocab_size=64)
    first, second = (TokensInfo.of_folder(folder / "tokens") for folder in (tokenized, tmp_path / "second"))
    assert first.splits == second.splits
    assert first.special_ids == second.special_ids


def test_continued_training_keeps_the_tokenizer_whatever_the_settings(tokenized: Path, tmp_path: Path) -> None:
    other = write_clean(tmp_path / "other", train=sentences(400, 3), validation=sentences(40, 4))
    given = {name: tmp_path / name for name in ("tokenizer", "out", "metrics", "work")}
    tokenize.run(params(algorithm="bpe"), clean=other, **given, start=tokenized / "tokenizer")
    assert contents(tmp_path / "tokenizer") == contents(tokenized / "tokenizer")


def test_each_document_has_a_unique_key_that_does_not_depend_on_its_place(tmp_path: Path) -> None:
    ids = [identity_of(text) for text in sentences(400, 1)]
    keys = {}
    for name, order in {"rising": ids, "falling": ids[::-1]}.items():
        path = tmp_path / f"{name}.parquet"
        pq.write_table(pa.table({"doc_id": order}), path, row_group_size=30)
        write_document_keys(path, documents_path(tmp_path, name))
        keys[name] = np.load(documents_path(tmp_path, name))
    assert keys["rising"].tolist() == keys["falling"][::-1].tolist()
    assert len(set(keys["rising"].tolist())) == len(ids)


def test_a_text_without_ids_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "train.parquet")
    with pytest.raises(ArtifactError, match="not a Parquet file"):
        write_document_keys(tmp_path / "train.parquet", tmp_path / "keys.npy")


def test_a_second_run_with_the_same_vocabulary_finds_the_ids_of_the_first(clean: Path, tmp_path: Path, caplog) -> None:
    caplog.set_level("INFO")
    run(clean, tmp_path / "out")
    before = contents(tmp_path / "out")
    assert "0 of 560 texts encoded by earlier runs" in caplog.messages
    run(clean, tmp_path / "out")
    assert "560 of 560 texts encoded by earlier runs" in caplog.messages
    assert contents(tmp_path / "out") == before


def test_unknown_characters_are_counted(tmp_path: Path) -> None:
    clean = write_clean(tmp_path / "clean", train=sentences(400, 1), validation=["kato мир kato", "kato"])
    figures = run(clean, tmp_path / "out")
    assert figures["validation"]["unknown_tokens"] == 1
    assert figures["validation"]["unknown_rate"] == 1 / figures["validation"]["tokens_packed"]
    assert figures["train"]["unknown_tokens"] == 0


def test_text_without_words_leaves_earlier_outputs_unchanged(clean: Path, tmp_path: Path) -> None:
    run(clean, tmp_path / "out")
    before = contents(tmp_path / "out")
    empty = write_clean(tmp_path / "empty", train=[" "], validation=["kato"])
    with pytest.raises(DataError, match="holds no text"):
        run(empty, tmp_path / "out")
    assert contents(tmp_path / "out") == before


@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_damaged_split_is_named_before_any_work(clean: Path, tmp_path: Path, split: str) -> None:
    path = clean / f"{split}.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ArtifactError, match=str(path)):
        run(clean, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_missing_and_empty_splits_are_named(clean: Path, tmp_path: Path) -> None:
    path = clean / "validation.parquet"
    pq.write_table(pa.table({"body": ["x"]}), path)
    with pytest.raises(ArtifactError, match="not a Parquet file") as caught:
        run(clean, tmp_path / "out")
    assert "columns body (string)" in caught.value.problem
    path.unlink()
    with pytest.raises(ArtifactError, match=str(path)):
        run(clean, tmp_path / "out")
