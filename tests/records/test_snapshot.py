"""A tombstone finds its text by its words, in any form and inside a longer text, and says nothing without its key."""

from pathlib import Path

import pytest

from clozeline.records.snapshot import FORGOTTEN_LOCK, KEY_FILE, Forgotten, with_tombstone, write
from clozeline.system.errors import ArtifactError
from tests.conftest import PROJECT

TEXT = "Jané Doe lives at 5 Elm Street, in the town of Oz."


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    file = tmp_path / FORGOTTEN_LOCK
    write(file, with_tombstone(file, TEXT))
    return file


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (TEXT, ""),
        ("JANE\u0301 doe   lives\nat 5 Elm Street in the\u00ad town of O\u200bz!", ""),
        (f"Before. {TEXT} After.", "Before.  After."),
        (f"{TEXT}\n\n{TEXT}\n\nLast", "\n\n\n\nLast"),
        (TEXT.replace("Oz", "Ozone"), TEXT.replace("Oz", "Ozone")),
        ("", ""),
    ],
)
def test_it_is_cut_out_in_every_form_and_nothing_else_is(lock: Path, text: str, left: str) -> None:
    assert Forgotten.read(lock).cut(text) == left


def test_the_longer_of_two_that_begin_alike_is_cut_also_in_scripts_without_spaces(lock: Path, tmp_path: Path) -> None:
    both = with_tombstone(lock, f"{TEXT} She is old.")
    assert both.cut(f"{TEXT} She is old. So.") == " So."
    assert both.cut(f"{TEXT} He is not.") == " He is not."
    found = with_tombstone(tmp_path / "elsewhere" / FORGOTTEN_LOCK, "田中さんは東京に住んでいます")
    assert found.cut("先週、田中さんは東京に住んでいます。以上") == "先週、。以上"


def test_neither_the_same_text_has_the_same_hash_under_two_keys_nor_is_it_readable(lock: Path, tmp_path: Path) -> None:
    (other,) = with_tombstone(tmp_path / "elsewhere" / FORGOTTEN_LOCK, TEXT).tombstones
    (own,) = Forgotten.read(lock).tombstones
    assert own.whole != other.whole
    assert "elm" not in lock.read_text().lower()
    assert lock.with_name(KEY_FILE).stat().st_mode & 0o077 == 0


def test_a_second_text_keeps_the_key_and_the_first(lock: Path) -> None:
    key = lock.with_name(KEY_FILE).read_bytes()
    second = "Another text that has more than eight words in it"
    write(lock, with_tombstone(lock, second))
    both = Forgotten.read(lock)
    assert both.cut(f"{TEXT} {second} {TEXT}") == ""
    assert lock.with_name(KEY_FILE).read_bytes() == key


@pytest.mark.parametrize("content", [None, "ab", "no hex"])
def test_tombstones_without_their_key_are_refused(lock: Path, content: str | None) -> None:
    key = lock.with_name(KEY_FILE)
    key.unlink()
    if content is not None:
        key.write_text(content)
    with pytest.raises(ArtifactError, match="would come back"):
        Forgotten.read(lock)


def test_a_project_that_forgot_nothing_needs_no_key(tmp_path: Path) -> None:
    assert not Forgotten.read(tmp_path / FORGOTTEN_LOCK)
    write(tmp_path / FORGOTTEN_LOCK, Forgotten(key=bytes(32)))
    assert (PROJECT / FORGOTTEN_LOCK).read_bytes() == (tmp_path / FORGOTTEN_LOCK).read_bytes(), "the shipped one"
    (tmp_path / KEY_FILE).unlink()
    assert Forgotten.read(tmp_path / FORGOTTEN_LOCK).cut(TEXT) == TEXT


@pytest.mark.parametrize("content", ["", "[]", '{"texts": [{"num_words": 3}]}'])
def test_a_damaged_lock_is_refused(lock: Path, content: str) -> None:
    lock.write_text(content)
    with pytest.raises(ArtifactError, match=FORGOTTEN_LOCK):
        Forgotten.read(lock)
