"""Claim: two texts have the same identity exactly if they differ only in case and white space."""

import bz2
import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from clozeline.records.reading import streams
from clozeline.records.reading.streams import content_key, identity_of, lines_of, parsed, read_blocks, read_lines
from clozeline.system.errors import DataError

TEXT = "".join(f"line {number} – ünï\n" for number in range(5_000))
Compress = Callable[[bytes], bytes]


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "misleading.csv"


@pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress, zstd])
def test_every_compression_gives_the_same_lines_to_the_end_of_concatenated_files(
    path: Path, compress: Compress
) -> None:
    path.write_bytes(compress(TEXT.encode()) + compress(b"two\n"))
    assert "".join(read_lines(path)) == f"{TEXT}two\n"


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, zstd])
def test_a_truncated_or_damaged_file_is_refused_by_name(path: Path, compress: Compress) -> None:
    whole = bytearray(compress(TEXT.encode()))
    damaged = [whole[: len(whole) // 2], whole[: int(len(whole) * 0.99)]]
    if compress is gzip.compress:
        whole[-6] ^= 0xFF
        damaged.append(whole)  # with another checksum
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"misleading\.csv: truncated or damaged"):
            list(read_lines(path))


def test_lines_are_yielded_before_the_end_of_the_file_is_read(path: Path) -> None:
    path.write_bytes(gzip.compress(TEXT.encode())[:-8])
    assert next(read_lines(path)) == "line 0 – ünï\n"


def test_another_encoding_is_named_with_its_place(path: Path) -> None:
    for content, place, encoding in (
        (b"fine\n" + "naïve café\n".encode("latin-1"), "line 2, byte 7", "ISO-8859-1"),
        *(("some text\nmore\n".encode(wide), "line 1", "UTF-16") for wide in ("utf-16", "utf-16-le", "utf-16-be")),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=rf"misleading\.csv, {place}: not UTF-8") as caught:
            list(read_lines(path))
        assert encoding != "ISO-8859-1" or "0xef" in str(caught.value)
        assert f"iconv -f {encoding}" in caught.value.do


def test_bad_bytes_are_named_with_their_place_in_the_file_in_every_block(path: Path) -> None:
    before = b"a line of text\n" * 30_000
    path.write_bytes(before + b"caf\xe9\n")
    *whole, last = read_blocks(path)
    assert whole, "the file has more than one block"
    with pytest.raises(DataError, match=rf"line 30001, byte {len(before) + 3}: not UTF-8"):
        list(last.lines())


def test_a_byte_order_mark_is_no_text_and_a_lone_carriage_return_ends_no_line_in_read_lines(path: Path) -> None:
    path.write_bytes("one\rtwo\r\nthree\r\n\rfour\r".encode("utf-8-sig"))
    assert list(lines_of(path)) == ["one\r", "two\r\n", "three\r\n", "\r", "four\r"]
    assert list(read_lines(path)) == ["one\rtwo\r\n", "three\r\n", "\rfour\r"]


def test_identity_ignores_only_case_and_white_space_and_is_that_of_earlier_versions() -> None:
    assert identity_of("A  b\nC") == content_key("a b c").hex() == "bf20797f12a991ed2a5ddfdaef9283f6"
    assert identity_of("a b c") != identity_of("a b, c")
    assert identity_of("a b", "c") == identity_of("A  b", "C") == "7319534cb27d6c4cce730856a326696e"
    assert len({identity_of("a b", "c"), identity_of("a", "b c"), identity_of("a b c"), identity_of("c", "a b")}) == 4


@pytest.mark.parametrize("half", ["\\ud83d", "\\uDE00", "\\udfff"])
def test_a_lone_surrogate_becomes_a_question_mark(half: str) -> None:
    value = parsed(f'{{"a{half}": ["{half}b", {{"c": "d{half} e"}}], "n": 1}}')
    assert value == {"a?": ["?b", {"c": "d? e"}], "n": 1}
    json.dumps(value, ensure_ascii=False).encode()


def test_json_parses_as_in_the_standard_library_and_what_is_none_is_a_value_error() -> None:
    text = '{"emoji": "\\ud83d\\ude00 \U0001f600", "d": "\\u00e4", "m": "\\\\ud83d", "n": [1.5, null, true]}'
    assert parsed(text) == json.loads(text)
    for broken in ("{", ""):
        with pytest.raises(ValueError, match=r"."):
            parsed(broken)
    with pytest.raises(ValueError, match="nested too deeply"):
        parsed("[" * 200_000)


def test_a_small_file_that_unpacks_to_an_endless_line_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_MAX_LINE_BYTES", 1_000_000)
    path.write_bytes(gzip.compress(b"a" * 50_000_000))
    for read in (streams.read_lines, streams.read_blocks):
        with pytest.raises(DataError, match="line of more than 1,000,000 bytes"):
            list(read(path, "`source.pattern`"))
