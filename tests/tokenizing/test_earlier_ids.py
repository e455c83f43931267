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
    pieces = [*SPECIAL, *characters, *(f"##{character}" for character in characters), "word", "and"]
    vocab = {piece: id_ for id_, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return saved(tokenizer, folder)


def saved(tokenizer: Tokenizer, folder: Path) -> OpenTokenizer:
    folder.mkdir()
    tokenizer.add_special_tokens(list(SPECIAL))
    frame_with_special_tokens(tokenizer, "[CLS]", "[SEP]")
    save(tokenizer, folder)
    return OpenTokenizer.open(folder)


@pytest.fixture
def opened(tmp_path: Path) -> OpenTokenizer:
    return open_tokenizer(tmp_path / "tokenizer")


@pytest.fixture(autouse=True)
def small_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "_PARTITION_BYTES", 1000)


@pytest.fixture
def num_encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of texts of each part that is encoded."""
    numbers: list[int] = []

    class Counted(WordCache):
        def look_up(self, cut):
            numbers.append(len(cut.num_words_D))
            return super().look_up(cut)

    monkeypatch.setattr(encoding, "WordCache", Counted)
    encoding._opened.cache_clear()
    return numbers


def write_clean(path: Path, texts: list[str]) -> Path:
    rows = sorted((identity_of(text), text, "source", "") for text in texts)
    columns = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
    pq.write_table(pa.table(columns, SCHEMA), path, row_group_size=70)
    return path


def packed(path: Path, opened: OpenTokenizer, kept: Path | None) -> Packed:
    """Pack a file with what `kept` holds, or without anything."""
    folder = path.with_name("shards")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    if kept is None:
        return pack(partitions_of(path), opened, folder, "train", 2000)
    ledger = Ledger(kept, "code", Workers(None, 1))
    earlier = EarlierIds.open(ledger, opened.sha256)
    done = pack(partitions_of(path), opened, folder, "train", 2000, ledger, earlier)
    earlier.keep(done.encoded)
    return done


def shards(path: Path, opened: OpenTokenizer, kept: Path | None) -> dict[str, bytes]:
    """Pack a file as `packed`; return the bytes of the shards."""
    packed(path, opened, kept)
    return {file.name: file.read_bytes() for file in path.with_name("shards").iterdir()}


def test_a_run_encodes_only_new_texts_and_writes_the_same_bytes(tmp_path, opened, num_encoded) -> None:
    shards(write_clean(tmp_path / "a.parquet", TEXTS[:290]), opened, tmp_path / "kept")
    num_encoded.clear()
    grown = write_clean(tmp_path / "a.parquet", TEXTS)
    found = shards(grown, opened, tmp_path / "kept")
    assert sum(num_encoded) == 10
    assert found == shards(grown, opened, None)
    num_encoded.clear()
    assert shards(grown, opened, tmp_path / "kept") == found
    assert sum(num_encoded) == 0


def test_texts_are_found_when_the_borders_of_partitions_move(tmp_path, opened, num_encoded, monkeypatch) -> None:
    path = write_clean(tmp_path / "a.parquet", TEXTS)
    before = len(partitions_of(path))
    shards(path, opened, tmp_path / "kept")
    num_encoded.clear()
    monkeypatch.setattr(partitions, "_PARTITION_BYTES", 4000)
    assert 1 < len(partitions_of(path)) < before
    found = shards(path, opened, tmp_path / "kept")
    assert sum(num_encoded) == 0
    assert found == shards(path, opened, None)


def test_counts_of_known_texts_are_those_of_encoding_them(tmp_path) -> None:
    finds_special_tokens = Tokenizer(models.WordLevel({piece: id_ for id_, piece in enumerate(SPECIAL)}, "[UNK]"))
    finds_special_tokens.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    opened = saved(finds_special_tokens, tmp_path / "tokenizer")
    texts = [*TEXTS, *(f"[MASK] and {number}" for number in range(9))]
    packed(write_clean(tmp_path / "a.parquet", texts), opened, tmp_path / "kept")
    grown = write_clean(tmp_path / "a.parquet", [*texts, "a new one"])
    known, alone = packed(grown, opened, tmp_path / "kept"), packed(grown, opened, None)
    assert (known.num_known, alone.num_known) == (309, 0)
    assert known.count.numbers == alone.count.numbers
    assert (known.count.uses_V == alone.count.uses_V).all()
    assert known.count.tokens_dropped == 9


def test_ids_of_a_run_that_was_stopped_are_found(tmp_path, opened, num_encoded, monkeypatch) -> None:
    path = write_clean(tmp_path / "a.parquet", TEXTS)
    with monkeypatch.context() as stopped:
        stopped.setattr(packing, "write_shards", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            shards(path, opened, tmp_path / "kept")
    assert list((tmp_path / "shards").iterdir()) == []
    num_encoded.clear()
    assert shards(path, opened, tmp_path / "kept") == shards(path, opened, None)
    assert sum(num_encoded) == len(TEXTS), "only the run without kept ids encodes"


def test_a_text_with_the_key_of_another_is_encoded_again(tmp_path, opened, num_encoded) -> None:
    shards(write_clean(tmp_path / "a.parquet", TEXTS), opened, tmp_path / "kept")
    num_encoded.clear()
    other = write_clean(tmp_path / "a.parquet", [TEXTS[0].upper(), *TEXTS[1:]])
    assert identity_of(TEXTS[0].upper()) == identity_of(TEXTS[0])
    assert shards(other, opened, tmp_path / "kept") == shards(other, opened, None)
    assert num_encoded[0] <= 1
    assert sum(num_encoded) == 1 + len(TEXTS)  # the second without kept ids


def test_a_damaged_file_is_not_trusted(tmp_path, opened, num_encoded) -> None:
    path = write_clean(tmp_path / "a.parquet", TEXTS)
    first = shards(path, opened, tmp_path / "kept")
    num_encoded.clear()
    for file in (tmp_path / "kept").glob("*/*/*.bin"):
        content = bytearray(file.read_bytes())
        content[-3] ^= 1
        file.write_bytes(content)
    assert shards(path, opened, tmp_path / "kept") == first
    assert sum(num_encoded) == len(TEXTS)


def test_another_vocabulary_encodes_every_text_again_and_says_so(tmp_path, opened, num_encoded, caplog) -> None:
    caplog.set_level("INFO")
    path = write_clean(tmp_path / "a.parquet", TEXTS)
    shards(path, opened, tmp_path / "kept")
    assert "every text is encoded again" not in caplog.text
    num_encoded.clear()
    other = open_tokenizer(tmp_path / "other", "0123456789abcdefghijklmnopqrstuvwxyz.,")
    found = shards(path, other, tmp_path / "kept")
    assert sum(num_encoded) == len(TEXTS)
    assert "every text is encoded again" in caplog.text
    assert found == shards(path, other, None)


def test_kept_ids_do_not_outgrow_the_text(tmp_path, opened) -> None:
    def size() -> int:
        return sum(file.stat().st_size for file in (tmp_path / "kept").rglob("*.bin"))

    shards(write_clean(tmp_path / "a.parquet", TEXTS[:30]), opened, tmp_path / "kept")
    small = size()
    shards(write_clean(tmp_path / "a.parquet", TEXTS), opened, tmp_path / "kept")
    shards(write_clean(tmp_path / "a.parquet", TEXTS[:30]), opened, tmp_path / "kept")
    assert size() == small


def test_keys_that_are_no_numbers_change_no_byte(tmp_path, opened) -> None:
    columns = [pa.array([f"row {number}" for number in range(300)]), pa.array(TEXTS), *[pa.array([""] * 300)] * 2]
    pq.write_table(pa.table(columns, SCHEMA), tmp_path / "a.parquet")
    first = shards(tmp_path / "a.parquet", opened, tmp_path / "kept")
    assert shards(tmp_path / "a.parquet", opened, tmp_path / "kept") == first
    assert shards(tmp_path / "a.parquet", opened, None) == first
