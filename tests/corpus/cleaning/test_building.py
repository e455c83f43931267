"""Every text is kept or has a reason; splits share no similar texts, keep their texts when a corpus grows, and have the
same bytes for any number of workers, size of portions, and work kept by earlier runs."""

import hashlib
import itertools
import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from clozeline.corpus.cleaning import buckets
from clozeline.corpus.cleaning.building import build_corpus
from clozeline.corpus.cleaning.portions import names_in_source, open_snapshot
from clozeline.params.text import PreprocessParams
from clozeline.records.clean_text import DOC_ID, TEXT, CorpusMetrics, columns_of, file_of, files_in, num_rows
from clozeline.records.reading.streams import identity_of
from clozeline.stages.calling.profiles import sample_of
from clozeline.system.errors import DataError
from clozeline.system.workers import worker_processes
from clozeline.tasks.files import read_records
from tests.make.texts import take_snapshot

SPLITS = ("train", "validation", "holdout")


def write_lines(folder: Path, texts: list[str]) -> Path:
    path = folder / "texts.jsonl"
    path.write_text(
        "\n".join(json.dumps({"text": text, "kind": f"k{number % 3}"}) for number, text in enumerate(texts))
    )
    return path


def build(
    path: Path,
    out: Path,
    params: PreprocessParams,
    *,
    seed: int = 7,
    num_workers: int = 1,
    work: Path | None = None,
    before: Path | None = None,
) -> CorpusMetrics:
    out.mkdir()
    raw = out.with_name(f"{out.name}-raw")
    take_snapshot(params.source, path, raw, before)
    with worker_processes(num_workers) as workers:
        source = open_snapshot(raw, params.source, quarantines=params.on_bad_record == "quarantine")
        work = work or out.with_name(f"{out.name}-work")
        named = names_in_source(raw, params.source)
        return build_corpus(source, params, seed=seed, out=out, work=work, workers=workers, named=named)


def sides(out: Path) -> dict[str, str]:
    """Return the split of each kept text."""
    return {text: split for split in SPLITS for text in pq.read_table(out / f"{split}.parquet")["text"].to_pylist()}


def digests(out: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in out.iterdir()}


def contents(out: Path) -> dict[str, bytes]:
    return {str(file.relative_to(out)): file.read_bytes() for file in out.rglob("*") if file.is_file()}


def rows_of(split: Path) -> Iterator[list[tuple[str, str]]]:
    for ids, texts in columns_of(split, DOC_ID, TEXT):
        yield list(zip(ids.to_pylist(), texts.to_pylist(), strict=True))


def shingles(text: str) -> set[tuple[str, ...]]:
    words = text.split()
    return {tuple(words[start : start + 3]) for start in range(len(words) - 2)}


@pytest.fixture
def texts(words) -> list[str]:
    """300 dissimilar texts; 30 half similar, 30 nearly equal and 10 equal to one of them; some unusable texts."""
    alone = [words(seed, 40) for seed in range(300)]
    alike = [" ".join(text.split()[:30] + words(5_000 + seed, 10).split()) for seed, text in enumerate(alone[:30])]
    nearly = [text + " end" for text in alone[100:130]]
    same = [text.upper().replace(" ", "  ") for text in alone[200:210]]
    return [*alone, *alike, *nearly, *same, "", "short", words(9_000, 900)]


def test_every_text_is_kept_or_has_a_reason(tmp_path, params_of, texts) -> None:
    report = build(write_lines(tmp_path, texts), tmp_path / "out", params_of())
    assert {file.name for file in (tmp_path / "out").iterdir()} == {f"{split}.parquet" for split in SPLITS}
    assert report.documents_read == len(texts) == 373
    assert report.dropped | {"exact_duplicate": 10, "near_duplicate": 30, "empty": 1, "too_short": 1} == report.dropped
    assert report.documents_split == 1
    kept = sides(tmp_path / "out")
    assert report.kept == len(kept)
    assert {split: list(kept.values()).count(split) for split in SPLITS} == {
        split: report.splits[split].documents for split in SPLITS
    }
    assert sum(split.bytes for split in report.splits.values()) == sum(len(text.encode()) for text in kept)


def test_a_wide_character_counts_as_three_letters_of_the_shortest_text(tmp_path, params_of, texts) -> None:
    chinese, korean, short = "人人生而自由在尊严上一律平等", "모든인간은태어날때부터", "人人生而自由"
    report = build(write_lines(tmp_path, [*texts, chinese, korean, short]), tmp_path / "out", params_of())
    kept = sides(tmp_path / "out")
    assert chinese in kept
    assert korean in kept
    assert report.dropped["too_short"] == 2, "its own, and six characters that count as 18 of 20 letters"


def test_a_long_text_is_cut_and_its_parts_stay_together(tmp_path, params_of, texts) -> None:
    build(write_lines(tmp_path, texts), tmp_path / "out", params_of(max_characters=500))
    long = texts[-1]
    parts = {text: split for text, split in sides(tmp_path / "out").items() if text in long}
    assert len(parts) > 5
    assert max(map(len, parts)) <= 500
    assert len(set(parts.values())) == 1


def test_no_two_splits_hold_similar_texts(tmp_path, params_of, texts) -> None:
    build(write_lines(tmp_path, texts), tmp_path / "out", params_of())
    for (one, side), (other, other_side) in itertools.combinations(sides(tmp_path / "out").items(), 2):
        if side != other_side:
            left, right = (shingles(text) for text in (one, other))
            assert len(left & right) / len(left | right) < 0.5


@pytest.mark.parametrize("num_workers", [2, 3])
def test_the_output_does_not_depend_on_the_number_of_workers(
    tmp_path, params_of, texts, monkeypatch, num_workers: int
) -> None:
    path = write_lines(tmp_path, texts)
    alone = build(path, tmp_path / "alone", params_of())
    monkeypatch.setattr("clozeline.records.reading.streams._BLOCK_BYTES", 5_000)
    monkeypatch.setattr("clozeline.corpus.cleaning.portions._BATCH_BYTES", 10_000)
    monkeypatch.setattr("clozeline.corpus.cleaning.portions._PORTION_BYTES", 20_000)
    many = build(path, tmp_path / "many", params_of(), num_workers=num_workers)
    assert many == alone
    assert digests(tmp_path / "many") == digests(tmp_path / "alone")


def test_much_text_has_a_file_for_each_range_of_keys(tmp_path, params_of, texts, monkeypatch) -> None:
    one = build(write_lines(tmp_path, texts), tmp_path / "one", params_of())
    monkeypatch.setattr(buckets, "_FILE_BYTES", 30_000)
    for num_workers in (1, 2):
        out = tmp_path / f"many-{num_workers}"
        assert build(tmp_path / "texts.jsonl", out, params_of(), num_workers=num_workers) == one
    many = tmp_path / "many-1"
    assert contents(many) == contents(tmp_path / "many-2")
    names = ["00000.parquet", "00001.parquet", "00002.parquet", "00003.parquet"]
    for split in SPLITS:
        assert [file.name for file in files_in(file_of(many, split))] == names
        found, expected = (list(chain.from_iterable(rows_of(file_of(out, split)))) for out in (many, tmp_path / "one"))
        assert found == expected
        assert num_rows(file_of(many, split), TEXT) == one.splits[split].documents
        assert pq.read_table(file_of(many, split))["text"].to_pylist() == [text for _, text in expected]
        records = read_records(file_of(many, split), {"of the text": "text"})
        assert [record.text("text") for record in records] == [text for _, text in expected]
        assert sorted(sample_of(file_of(many, split))) == sorted(sample_of(file_of(tmp_path / "one", split)))
    first = [f"{doc_id:.2}" for doc_id, _ in chain.from_iterable(rows_of(file_of(many, "train") / names[1]))]
    assert {prefix >= "40" and prefix < "80" for prefix in first} == {True}, "the second of four ranges"


def test_the_output_does_not_depend_on_the_size_of_portions_and_batches(
    tmp_path, params_of, texts, monkeypatch
) -> None:
    path = write_lines(tmp_path, texts)
    build(path, tmp_path / "large", params_of())
    monkeypatch.setattr("clozeline.records.reading.streams._BLOCK_BYTES", 1_000)
    monkeypatch.setattr("clozeline.corpus.cleaning.portions._MAX_BATCH_UNITS", 1)
    monkeypatch.setattr("clozeline.corpus.cleaning.portions._PORTION_BYTES", 3_000)
    build(path, tmp_path / "small", params_of())
    assert digests(tmp_path / "large") == digests(tmp_path / "small")


def test_the_output_does_not_depend_on_batches_kept_by_earlier_runs(
    tmp_path, params_of, texts, words, monkeypatch
) -> None:
    monkeypatch.setattr("clozeline.records.reading.streams._BLOCK_BYTES", 2_000)
    monkeypatch.setattr("clozeline.corpus.cleaning.portions._BATCH_BYTES", 10_000)
    build(write_lines(tmp_path, texts[:300]), tmp_path / "before", params_of(), work=tmp_path / "kept")
    path = write_lines(tmp_path, texts)
    grown = build(path, tmp_path / "grown", params_of(), work=tmp_path / "kept")
    assert build(path, tmp_path / "scratch", params_of(), work=tmp_path / "empty") == grown
    assert digests(tmp_path / "scratch") == digests(tmp_path / "grown")


def test_moving_the_source_folder_does_not_change_the_output(tmp_path, params_of, texts) -> None:
    for place in ("here", "over/there"):
        (tmp_path / place).mkdir(parents=True)
        write_lines(tmp_path / place, texts)
        build(tmp_path / place, tmp_path / place / "out", params_of(pattern="*.jsonl"))
    assert digests(tmp_path / "here" / "out") == digests(tmp_path / "over" / "there" / "out")


def test_added_texts_do_not_move_others_to_another_split(tmp_path, params_of, texts, words) -> None:
    build(write_lines(tmp_path, texts), tmp_path / "before", params_of())
    more = [*texts, *(words(20_000 + seed, 40) for seed in range(100)), texts[50] + " and a few words more here"]
    build(write_lines(tmp_path, more), tmp_path / "after", params_of())
    before, after = sides(tmp_path / "before"), sides(tmp_path / "after")
    assert before.items() <= after.items()
    assert len(after) >= len(before) + 100


def test_a_file_that_grows_beside_another_moves_no_text_to_another_split(tmp_path, params_of, texts, words) -> None:
    params, folder = params_of(), tmp_path / "feeds"
    folder.mkdir()

    def add(name: str, added: list[str]) -> None:
        with (folder / name).open("a") as file:
            file.writelines(json.dumps({"text": text, "kind": "k"}) + "\n" for text in added)

    add("a.jsonl", texts[:300])
    add("b.jsonl", texts[300:])  # half of them resemble texts of the other file
    build(folder, tmp_path / "one", params)
    # Half of each new text is from the end of an earlier one, in either file.
    add("a.jsonl", [" ".join(text.split()[-30:] + words(7_000 + seed, 10).split()) for seed, text in enumerate(texts)])
    build(folder, tmp_path / "two", params, before=tmp_path / "one-raw", work=tmp_path / "one-work")
    build(folder, tmp_path / "anew", params, before=tmp_path / "one-raw")
    before, after = sides(tmp_path / "one"), sides(tmp_path / "two")
    assert len(after) > len(before) + 50
    assert {text: after.get(text) for text in before} == before
    assert digests(tmp_path / "two") == digests(tmp_path / "anew"), "reused work changes no byte"


def test_a_text_similar_to_two_splits_is_dropped_and_moves_no_other_text(tmp_path, params_of, texts) -> None:
    params = params_of(same_side_similarity=0.3)
    build(write_lines(tmp_path, texts), tmp_path / "before", params)
    before = sides(tmp_path / "before")
    one, two = (next(text for text in texts[40:90] if before[text] == split) for split in ("train", "validation"))
    report = build(
        write_lines(tmp_path, [*texts, f"{one} {two}", f"{two} with an end of its own"]), tmp_path / "after", params
    )
    assert report.dropped["two_splits"] == 1
    assert sides(tmp_path / "after") == before


def test_another_seed_gives_another_split(tmp_path, params_of, texts) -> None:
    path = write_lines(tmp_path, texts)
    build(path, tmp_path / "one", params_of(), seed=1)
    build(path, tmp_path / "two", params_of(), seed=2)
    one, two = sides(tmp_path / "one"), sides(tmp_path / "two")
    assert one.keys() == two.keys()
    assert one != two


def test_rows_are_identified_and_shuffled_by_content(tmp_path, params_of, texts) -> None:
    build(write_lines(tmp_path, texts), tmp_path / "out", params_of(label_field="kind"))
    rows = pq.read_table(tmp_path / "out" / "train.parquet").to_pylist()
    assert list(rows[0]) == ["doc_id", "text", "source", "title"]
    ids = [row["doc_id"] for row in rows]
    assert ids == sorted(set(ids))
    assert ids == [identity_of(row["text"]) for row in rows]
    places = [texts.index(row["text"]) for row in rows if row["text"] in texts]
    assert abs(np.corrcoef(places, np.arange(len(places)))[0, 1]) < 0.3
    assert all(row["source"] == f"k{texts.index(row['text']) % 3}" for row in rows if row["text"] in texts)


def test_entities_in_files_are_decoded(tmp_path, params_of, texts) -> None:
    build(write_lines(tmp_path, [*texts, "R&amp;D and the rest of the department"]), tmp_path / "out", params_of())
    assert "R&D and the rest of the department" in sides(tmp_path / "out")


def test_without_a_label_field_the_file_name_is_the_label(tmp_path, params_of, words) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("\n\n".join(words(len(name) + ord(name[0]) * 100 + seed) for seed in range(40)))
    report = build(tmp_path, tmp_path / "out", params_of(pattern="*.txt"))
    assert report.splits["train"].sources == 2


def test_a_single_file_read_as_one_document_is_too_little_to_split(tmp_path, params_of, words) -> None:
    (tmp_path / "all.txt").write_text("\n\n".join(words(seed, 40) for seed in range(100)))
    with pytest.raises(DataError, match="too little text to split") as caught:
        build(tmp_path / "all.txt", tmp_path / "out", params_of(one_document_per="file"))
    assert "one_document_per" in caught.value.do


def test_an_empty_file_is_called_empty(tmp_path, params_of) -> None:
    path = write_lines(tmp_path, [])
    path.write_bytes(b"")
    with pytest.raises(DataError, match="no text in 0 bytes"):
        build(path, tmp_path / "out", params_of())


def test_a_source_without_usable_text_is_refused_with_its_counts(tmp_path, params_of) -> None:
    path = write_lines(tmp_path, ["short", "", "also short"])
    with pytest.raises(DataError, match="no text is left of 3") as caught:
        build(path, tmp_path / "out", params_of())
    assert "1 empty, 2 too short" in str(caught.value)


def test_a_hub_dataset_without_usable_text_is_called_by_its_name(tmp_path, params_of) -> None:
    (tmp_path / "dataset").mkdir()
    dataset = write_lines(tmp_path / "dataset", ["short", "also short"]).parent
    with pytest.raises(DataError, match="no text is left") as caught:
        build(tmp_path, tmp_path / "out", params_of(kind="hub", dataset=str(dataset)))
    assert caught.value.problem.startswith(f"{dataset}: ")


def test_bad_records_are_counted_and_listed_by_their_place_in_the_source(tmp_path, params_of, texts) -> None:
    path = write_lines(tmp_path, texts)
    path.write_text(path.read_text() + '\n{"text": 1}\n[]\n')
    quarantine = params_of(on_bad_record="quarantine")
    with pytest.raises(DataError, match="not text"):
        build(path, tmp_path / "stopped", params_of())
    for name in ("one", "two"):
        report = build(path, tmp_path / name, quarantine, work=tmp_path / "work")
        assert report.dropped["bad_record"] == 2
        assert report.documents_read == len(texts) + 2
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    listed = [json.loads(line) for line in (tmp_path / "one/bad_records.jsonl").read_text().splitlines()]
    assert [record["place"].rpartition(", ")[2] for record in listed] == ["line 374", "line 375"]
    assert "field `text` is not text" in listed[0]["reason"]


def test_altered_texts_are_counted_by_kind_also_from_kept_results(tmp_path, params_of, texts) -> None:
    path = write_lines(tmp_path, [*texts[:20], texts[20] + "\u200b\u200b", "\u202e" + texts[21], texts[22] + "\ud83d"])
    for name in ("one", "two"):
        altered = build(path, tmp_path / name, params_of(), work=tmp_path / "work").altered
        assert {kind: number for kind, number in altered.items() if number} == {
            "lone_surrogates": 1,
            "zero_width": 1,
            "direction_marks": 1,
        }


def test_texts_of_few_words_are_too_short(tmp_path, params_of, texts) -> None:
    path = write_lines(tmp_path, [*texts[:20], f"{'long' * 10} word"])
    assert build(path, tmp_path / "any", params_of(min_words=2)).dropped["too_short"] == 0
    assert build(path, tmp_path / "out", params_of(min_words=3)).dropped["too_short"] == 1
