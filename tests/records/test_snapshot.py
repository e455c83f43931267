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


def test_it_is_cut_out_in_every_form_and_nothing_else_is(lock: Path) -> None:
    for text, left in (
        (TEXT, ""),
        ("JANE\u0301 doe   lives\nat 5 Elm Street in the\u00ad town of O\u200bz!", ""),
        (f"Before. {TEXT} After.", "Before.  After."),
        (f"{TEXT}\n\n{TEXT}\n\nLast", "\n\n\n\nLast"),
        (TEXT.replace("Oz", "Ozone"), TEXT.replace("Oz", "Ozone")),
        ("", ""),
    ):
        assert Forgotten.read(lock).cut(text) == left


def test_the_longer_of_two_that_begin_alike_is_cut_also_in_scripts_without_spaces(lock: Path, tmp_path: Path) -> None:
    both = with_tombstone(lock, f"{TEXT} She is old.")
    assert both.cut(f"{TEXT} She is old. So.") == " So."
    assert both.cut(f"{TEXT} He is not.") == " He is not."
    found = with_tombstone(tmp_path / "elsewhere" / FORGOTTEN_LOCK, "田中さんは東京に住んでいます")
    assert found.cut("先週、田中さんは東京に住んでいます。以上") == "先週、。以上"


def test_a_hash_tells_nothing_without_its_key_and_a_second_text_keeps_the_key(lock: Path, tmp_path: Path) -> None:
    (other,) = with_tombstone(tmp_path / "elsewhere" / FORGOTTEN_LOCK, TEXT).tombstones
    (own,) = Forgotten.read(lock).tombstones
    assert own.whole != other.whole
    assert "elm" not in lock.read_text().lower()
    key = lock.with_name(KEY_FILE)
    assert key.stat().st_mode & 0o077 == 0
    before = key.read_bytes()
    second = "Another text that has more than eight words in it"
    write(lock, with_tombstone(lock, second))
    assert Forgotten.read(lock).cut(f"{TEXT} {second} {TEXT}") == ""
    assert key.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        *((KEY_FILE, content, "would come back") for content in (None, "ab", "no hex")),
        *((FORGOTTEN_LOCK, content, FORGOTTEN_LOCK) for content in ("", "[]", '{"texts": [{"num_words": 3}]}')),
    ],
)
def test_tombstones_without_their_key_and_a_damaged_lock_are_refused(
    lock: Path, name: str, content: str | None, told: str
) -> None:
    lock.with_name(name).unlink()
    if content is not None:
        lock.with_name(name).write_text(content)
    with pytest.raises(ArtifactError, match=told):
        Forgotten.read(lock)


def test_a_project_that_forgot_nothing_needs_no_key(tmp_path: Path) -> None:
    assert not Forgotten.read(tmp_path / FORGOTTEN_LOCK)
    write(tmp_path / FORGOTTEN_LOCK, Forgotten(key=bytes(32)))
    assert (PROJECT / FORGOTTEN_LOCK).read_bytes() == (tmp_path / FORGOTTEN_LOCK).read_bytes(), "the shipped one"
    (tmp_path / KEY_FILE).unlink()
    assert Forgotten.read(tmp_path / FORGOTTEN_LOCK).cut(TEXT) == TEXT
