"""Claim: texts that an earlier run encoded get the ids that this run would compute."""

from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from clozeline.artifacts.preprocess.clean_text import SCHEMA
from clozeline.records.files.identity import identity_of
from clozeline.storage.kept_results import KeptResults
from clozeline.tokenizer.folder import OpenTokenizer, frame_with_special_tokens, save
from clozeline.tokenizing import encoding, packing, partitions
from clozeline.tokenizing.earlier_ids import EarlierIds
from clozeline.tokenizing.packing import pack
from clozeline.tokenizing.word_cache import WordCache

TEXTS = [f"word{number} and word{number % 7} of {number * number}" for number in range(300)]
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def open_tokenizer(folder: Path, characters: str = "0123456789abcdefghijklmnopqrstuvwxyz") -> OpenTokenizer:
    folder.mkdir()
    pieces = [*SPECIAL, *characters, *(f"##{character}" for character in characters), "word", "and"]
    vocab = {piece: id_ for id_, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(list(SPECIAL))
    frame_with_special_tokens(tokenizer, "[CLS]", "[SEP]")
    save(tokenizer, folder)
    return OpenTokenizer.open(folder)


@pytest.fixture
def opened(tmp_path: Path) -> OpenTokenizer:
    return open_tokenizer(tmp_path / "tokenizer")


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "TEXTS_A_RANGE", 20)
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


def shards(path: Path, opened: OpenTokenizer, kept: Path | None) -> dict[str, bytes]:
    """Pack a file with the ids that `kept` holds, or without any; return the bytes of the shards."""
    folder = path.with_name("shards")
    folder.mkdir(exist_ok=True)
    earlier = EarlierIds.open(KeptResults(kept), opened) if kept else None
    packed = pack(path, opened, folder, "train", 2000, earlier=earlier)
    if earlier:
        earlier.keep_only(packed.found)
    return {file.name: file.read_bytes() for file in folder.iterdir()}


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


@pytest.mark.parametrize("count", [150, 170])
def test_texts_are_found_when_the_number_of_ranges_doubles(tmp_path, opened, num_encoded, count: int) -> None:
    shards(write_clean(tmp_path / "a.parquet", TEXTS[:150]), opened, tmp_path / "kept")
    num_encoded.clear()
    path = write_clean(tmp_path / "a.parquet", TEXTS[:count])
    found = shards(path, opened, tmp_path / "kept")
    assert sum(num_encoded) == count - 150
    num_encoded.clear()
    assert shards(path, opened, tmp_path / "kept") == found
    assert sum(num_encoded) == 0, "ids from a range of twice the width are kept by the new ranges"
    assert found == shards(path, opened, None)


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
    for file in [file for file in (tmp_path / "kept").glob("*/*") if file.is_file()]:
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
    assert "0 of 300 texts encoded by earlier runs" in caplog.text
    assert found == shards(path, other, None)


def test_kept_ids_do_not_outgrow_the_text(tmp_path, opened) -> None:
    def size() -> int:
        return sum(file.stat().st_size for file in (tmp_path / "kept").rglob("*") if file.is_file())

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
