"""Claim: texts that an earlier run encoded get the ids that this run would compute."""

import shutil
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from clozeline.cluster.ledger import Ledger
from clozeline.records.clean_text import SCHEMA
from clozeline.records.reading.streams import identity_of
from clozeline.system.workers import Workers
from clozeline.tokenizing import encoding, packing
from clozeline.tokenizing import shards as partitions
from clozeline.tokenizing.earlier_ids import EarlierIds
from clozeline.tokenizing.encoding import WordCache
from clozeline.tokenizing.packing import Packed, pack
from clozeline.tokenizing.shards import partitions_of
from clozeline.tokenizing.tokenizer.folder import OpenTokenizer, frame_with_special_tokens, save

TEXTS = [f"word{number} and word{number % 7} of {number * number}" for number in range(300)]
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def open_tokenizer(folder: Path, characters: str = "0123456789abcdefghijklmnopqrstuvwxyz") -> OpenTokenizer:
    """Return a tokenizer that finds special tokens in a text."""
    pieces = [*SPECIAL, *characters, *(f"##{character}" for character in characters), "word", "and"]
    tokenizer = Tokenizer(models.WordPiece({piece: id_ for id_, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    folder.mkdir()
    tokenizer.add_special_tokens(list(SPECIAL))
    frame_with_special_tokens(tokenizer, "[CLS]", "[SEP]")
    save(tokenizer, folder)
    return OpenTokenizer.open(folder)


@pytest.fixture(autouse=True)
def small_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "_PARTITION_BYTES", 1000)


class Runs:
    """Packs a file of texts again and again, with what the folder `kept` holds."""

    def __init__(self, folder: Path, opened: OpenTokenizer) -> None:
        self.file, self.out, self.kept, self.opened = folder / "a.parquet", folder / "shards", folder / "kept", opened
        self.num_encoded = 0  # texts that the last run encoded

    def write(self, texts: list[str]) -> None:
        rows = sorted((identity_of(text), text) for text in texts)
        columns = [*map(list, zip(*rows, strict=True)), ["source"] * len(rows), [""] * len(rows)]
        pq.write_table(pa.table(columns, SCHEMA), self.file, row_group_size=70)

    def pack(self, *, anew: bool = False) -> Packed:
        """Pack with what is kept; `anew`: without anything."""
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir()
        self.num_encoded = 0
        encoding._opened.cache_clear()
        if anew:
            return pack(partitions_of(self.file), self.opened, self.out, "train", 2000)
        ledger = Ledger(self.kept, "code", Workers(None, 1))
        earlier = EarlierIds.open(ledger, self.opened.sha256)
        done = pack(partitions_of(self.file), self.opened, self.out, "train", 2000, ledger, earlier)
        earlier.keep(done.encoded)
        return done

    def shards(self, *, anew: bool = False) -> dict[str, bytes]:
        self.pack(anew=anew)
        return {file.name: file.read_bytes() for file in self.out.iterdir()}

    def kept_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.kept.rglob("*.bin"))

    def assert_encodes(self, num_texts: int) -> None:
        """Assert that a run encodes so many texts, and writes what a run without kept ids writes."""
        found = self.shards()
        assert self.num_encoded == num_texts
        assert found == self.shards(anew=True)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    runs = Runs(tmp_path, open_tokenizer(tmp_path / "tokenizer"))
    runs.write(TEXTS)

    class Counted(WordCache):
        def look_up(self, cut):
            runs.num_encoded += len(cut.num_words_D)
            return super().look_up(cut)

    monkeypatch.setattr(encoding, "WordCache", Counted)
    return runs


def test_a_run_encodes_only_new_texts_and_writes_the_same_bytes(runs: Runs) -> None:
    runs.write(TEXTS[:290])
    runs.assert_encodes(290)
    runs.write(TEXTS)
    runs.assert_encodes(10)
    runs.assert_encodes(0)
    runs.write([TEXTS[0].upper(), *TEXTS[1:]])
    assert identity_of(TEXTS[0].upper()) == identity_of(TEXTS[0])
    runs.assert_encodes(1)  # a text with the key of another
    size = runs.kept_bytes()
    runs.write(TEXTS[1:30])
    runs.assert_encodes(0)
    assert runs.kept_bytes() < size / 5, "kept ids do not outgrow the text"


def test_texts_of_a_run_that_was_stopped_are_found_also_when_the_borders_of_partitions_move(runs, monkeypatch) -> None:
    before = len(partitions_of(runs.file))
    with monkeypatch.context() as stopped:
        stopped.setattr(packing, "write_shards", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            runs.pack()
    assert list(runs.out.iterdir()) == []
    runs.assert_encodes(0)
    monkeypatch.setattr(partitions, "_PARTITION_BYTES", 4000)
    assert 1 < len(partitions_of(runs.file)) < before
    runs.assert_encodes(0)


def test_counts_of_known_texts_are_those_of_encoding_them(runs: Runs) -> None:
    texts = [*TEXTS, *(f"[MASK] and {number}" for number in range(9))]
    runs.write(texts)
    runs.pack()
    runs.write([*texts, "a new one"])
    known, alone = runs.pack(), runs.pack(anew=True)
    assert (known.num_known, alone.num_known) == (309, 0)
    assert known.count.numbers == alone.count.numbers
    assert (known.count.uses_V == alone.count.uses_V).all()
    assert known.count.tokens_dropped == 9


def test_damaged_ids_and_those_of_another_vocabulary_are_not_used(runs: Runs, tmp_path, caplog) -> None:
    caplog.set_level("INFO")
    runs.pack()
    for file in runs.kept.glob("*/*/*.bin"):
        content = bytearray(file.read_bytes())
        content[-3] ^= 1
        file.write_bytes(content)
    runs.assert_encodes(len(TEXTS))
    assert "every text is encoded again" not in caplog.text
    runs.opened = open_tokenizer(tmp_path / "other", "0123456789abcdefghijklmnopqrstuvwxyz.,")
    runs.assert_encodes(len(TEXTS))
    assert "every text is encoded again" in caplog.text
