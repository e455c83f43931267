"""Claim: column files are read in spite of common irregularities; an error names the file and the line."""

from pathlib import Path

import pytest

from clozeline.system.errors import DataError
from clozeline.tasks.files import read_records
from clozeline.tasks.formats import tag_readers

FIELDS = {"tokens_field": "words", "tags_field": "tags"}
Sentences = list[tuple[list[str], list[str]]]


def sentences(folder: Path, text: str, *, token: int = 0, tag: int = -1, suffix: str = ".conll") -> Sentences:
    path = folder / f"data{suffix}"
    path.write_bytes(text.encode())
    records = read_records(path, FIELDS, tag_readers(token, tag))
    return [(record.strings("words"), record.strings("tags")) for record in records]


def test_a_sentence_ends_at_a_blank_line_or_the_end_of_the_file(tmp_path: Path) -> None:
    text = "A\tO\nb\tB-x\n\nc\tO\n\t\nd\tO\n \t \n\n\ne\tO"
    found = sentences(tmp_path, text)
    assert found == [(["A", "b"], ["O", "B-x"]), (["c"], ["O"]), (["d"], ["O"]), (["e"], ["O"])]


def test_columns_are_separated_by_tabs_or_spaces_and_the_tag_is_last(tmp_path: Path) -> None:
    assert sentences(tmp_path, "APC2\tNN\tO\tB-Gene\r\n") == [(["APC2"], ["B-Gene"])]
    assert sentences(tmp_path, "U.N. NNP I-NP I-ORG\n") == [(["U.N."], ["I-ORG"])]


def test_columns_can_be_chosen_from_either_end(tmp_path: Path) -> None:
    assert sentences(tmp_path, "1\tword\tO\tB-x\tjunk\n", token=1, tag=3) == [(["word"], ["B-x"])]
    assert sentences(tmp_path, "1\tword\tO\tB-x\tjunk\n", token=-4, tag=-2) == [(["word"], ["B-x"])]


def test_document_marks_and_comments_are_skipped_but_a_single_hash_is_a_word(tmp_path: Path) -> None:
    text = "-DOCSTART- -X- -X- O\n\n# id 4\n# O\n# O\nx B-y\n"
    assert sentences(tmp_path, text) == [(["#", "#", "x"], ["O", "O", "B-y"])]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("lonely", "line 3: fewer than 2 columns"),
        ("word\tNNP", "line 3: NNP"),
        ("\tO\tO", "line 3: a tag without a word"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: str, problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        sentences(tmp_path, f"a\tO\nb\tO\n{line}\n")


def test_a_missing_column_is_reported_with_its_param(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="token_column"):
        sentences(tmp_path, "a\tO\n", token=2)


@pytest.mark.parametrize("suffix", [".txt", ".tsv", ".iob", ".bio"])
def test_every_known_suffix_is_read_as_columns(tmp_path: Path, suffix: str) -> None:
    assert sentences(tmp_path, "a\tO\n", suffix=suffix) == [(["a"], ["O"])]
