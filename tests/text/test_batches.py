"""Claim: batches that an earlier run kept are the batches that this run would compute."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from clozeline.cluster.ledger import Ledger
from clozeline.corpus.cleaning import preparation
from clozeline.corpus.cleaning.documents import DropReason, FileReading, RawFile, RawText, TextFields
from clozeline.corpus.cleaning.line_formats import JsonBlock, LineSettings
from clozeline.corpus.cleaning.preparation import (
    PreparationSettings,
    PreparedBatch,
    ReadText,
    code_of_batches,
    prepare,
    prepared,
    read_texts,
)
from clozeline.corpus.cleaning.wikipedia import WikiPage
from clozeline.records.reading.streams import Meter, read_blocks
from clozeline.records.words.shingles import Banding
from clozeline.system.content import sha256_of
from clozeline.system.workers import Workers

SETTINGS = PreparationSettings(20, 500, decode_entities=True, banding=Banding.finding(0.5))


@pytest.fixture
def documents(words: Callable[[int, int], str]) -> list[str]:
    return [*(words(seed, 40) for seed in range(200)), "short"]


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clozeline.corpus.cleaning.portions._BATCH_BYTES", 5_000)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of units of each batch that is computed."""
    sizes: list[int] = []
    monkeypatch.setattr(preparation, "prepare", lambda units, how: sizes.append(len(units)) or prepare(units, how))
    return sizes


def run(documents: list[str], folder: Path, settings: PreparationSettings = SETTINGS) -> list[PreparedBatch]:
    """Prepare a file with a document in each line, with what is kept in `folder`."""
    path = folder.parent / "raw" / "lines.txt"
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{document}\n" for document in documents))
    file = RawFile(path, path.name, "source", sha256=sha256_of(path))
    raw = RawText((file,), FileReading("files", "text", None, "line"), path.stat().st_size)
    ledger = Ledger(folder, code_of_batches(settings), Workers(None, 1))
    records = list(prepared(raw, settings, ledger, ReadText()))
    assert sum(record.stored_bytes for record in records) == pytest.approx(raw.total_bytes, abs=len(records))
    ledger.keep_only({record.key for record in records})
    return [PreparedBatch(read_texts(record.texts).to_batches()[0], record.counts) for record in records]


@pytest.mark.usefixtures("small_batches")
def test_kept_batches_equal_computed_ones(documents, computed, tmp_path: Path) -> None:
    first = run(documents, tmp_path / "kept")
    assert sum(computed) == len(documents)
    assert len(first) > 5
    computed.clear()
    assert run(documents, tmp_path / "kept") == first
    assert computed == []
    assert sum(batch.counts.dropped[DropReason.TOO_SHORT] for batch in first) == 1


def test_counts_of_a_kept_batch_equal_computed_ones(tmp_path: Path, words) -> None:
    """The long document counts once as read and once as cut; each of its texts has an ordinal."""
    documents = [words(1, 300), "short"]
    (computed,) = run(documents, tmp_path / "kept")
    assert (computed.counts.num_read, computed.counts.num_split) == (2, 1)
    assert computed.counts.num_ordinals > 3
    assert run(documents, tmp_path / "kept") == [computed]


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("place", [0, 100, 201])
def test_new_text_recomputes_only_the_neighbouring_batches(
    documents, computed, tmp_path: Path, place: int, words
) -> None:
    run(documents, tmp_path / "kept")
    computed.clear()
    grown = [*documents[:place], words(999, 40), *documents[place:]]
    found = run(grown, tmp_path / "kept")
    assert 1 <= sum(computed) < 120
    assert found == run(grown, tmp_path / "empty")


def test_a_damaged_batch_is_computed_again(documents, computed, tmp_path: Path) -> None:
    first = run(documents, tmp_path / "kept")
    computed.clear()
    for path in tmp_path.glob("kept/*/*/texts.arrow"):
        content = bytearray(path.read_bytes())
        content[random.Random(1).randrange(len(content))] ^= 1
        path.write_bytes(content)
    assert run(documents, tmp_path / "kept") == first
    assert sum(computed) == len(documents)


@pytest.mark.usefixtures("small_batches")
def test_only_the_batches_of_the_last_run_are_kept(documents, tmp_path: Path) -> None:
    run(documents, tmp_path / "kept")
    run(documents[:3], tmp_path / "kept")
    assert len(list(tmp_path.glob("kept/*/*"))) == 1


def test_other_settings_recompute_all_batches(documents, computed, tmp_path: Path) -> None:
    run(documents, tmp_path / "kept")
    other = PreparationSettings(30, 500, decode_entities=True, banding=SETTINGS.banding)
    run(documents, tmp_path / "kept", other)
    assert sum(computed) == 2 * len(documents)


def test_other_code_or_package_versions_recompute_all_batches(documents, computed, tmp_path: Path, monkeypatch) -> None:
    run(documents, tmp_path / "kept")
    monkeypatch.setattr(preparation, "_CODE", ("text",))
    run(documents, tmp_path / "kept")
    monkeypatch.setattr(preparation, "versions_used", lambda: {"ftfy": "0"})
    run(documents, tmp_path / "kept")
    assert sum(computed) == 3 * len(documents)


def block(path: Path, content: bytes, label: str = "a", number: int = 0) -> JsonBlock:
    path.write_bytes(content)
    found = list(read_blocks(path, Meter()))[number]
    return JsonBlock(found, LineSettings(str(path), label, TextFields("text", None), "line"))


def test_the_identity_of_a_block_depends_on_its_label_and_not_on_its_location(tmp_path: Path) -> None:
    one = block(tmp_path / "one", b'{"text": "some"}\n')
    assert block(tmp_path / "two", b'{"text": "some"}\n').identity() == one.identity()
    assert block(tmp_path / "two", b'{"text": "some"}\n', label="b").identity() != one.identity()
    assert block(tmp_path / "two", b'{"text": "same"}\n').identity() != one.identity()


def test_the_first_block_of_a_file_has_another_identity_than_equal_later_lines(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("clozeline.records.reading.streams._BLOCK_BYTES", 10)
    content = b'{"text": "some"}\n' * 2
    one, two = (block(tmp_path / "one", content, number=number) for number in (0, 1))
    assert one.block.content == two.block.content
    assert one.identity() != two.identity()


def test_the_names_of_namespaces_identify_a_page_in_any_order() -> None:
    names = [f"name{number}" for number in range(50)]
    one, two = (WikiPage("t", "text", "a", frozenset(some), None) for some in (names, names[::-1]))
    assert one.identity() == two.identity()
    assert WikiPage("t", "text", "a", frozenset(names[1:]), None).identity() != one.identity()
