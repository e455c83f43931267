"""Every text is kept or has a reason; splits share no similar texts, keep their texts when a corpus grows, and have the
same bytes for any number of workers, size of portions, and work kept by earlier runs."""

import itertools
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from clozeline.corpus.cleaning import buckets
from clozeline.corpus.cleaning.building import build_corpus
from clozeline.corpus.cleaning.portions import names_in_source, open_snapshot
from clozeline.records.clean_text import DOC_ID, TEXT, CorpusMetrics, columns_of, file_of, files_in, num_rows
from clozeline.records.reading.streams import identity_of
from clozeline.stages.calling.contract import sample_of
from clozeline.system.errors import DataError
from clozeline.system.workers import worker_processes
from clozeline.tasks.selection import read_records
from tests.corpus.cleaning.test_near_duplicates import true_jaccard
from tests.make.texts import take_snapshot

SPLITS = ("train", "validation", "holdout")


@dataclass(frozen=True)
class Built:
    out: Path
    report: CorpusMetrics

    @property
    def sides(self) -> dict[str, str]:
        """The split of each kept text."""
        read = {split: pq.read_table(file_of(self.out, split))["text"].to_pylist() for split in SPLITS}
        return {text: split for split, texts in read.items() for text in texts}

    @property
    def contents(self) -> dict[str, bytes]:
        return {str(file.relative_to(self.out)): file.read_bytes() for file in self.out.rglob("*") if file.is_file()}


def jsonl(texts: Iterable[str]) -> str:
    return "".join(json.dumps({"text": text, "kind": f"k{number % 3}"}) + "\n" for number, text in enumerate(texts))


Build = Callable[..., Built]


@pytest.fixture(scope="module")
def build_in(params_of) -> Build:
    """`build_in(folder, source, name, **params)`: the corpus of these texts, or of a file or folder."""

    def build_in(folder, source, name="out", *, seed=7, num_workers=1, work=None, before=None, **changes) -> Built:
        params, out, raw = params_of(**{"label_field": "kind"} | changes), folder / name, folder / f"{name}-raw"
        out.mkdir()
        if isinstance(source, list):
            (folder / "texts.jsonl").write_text(jsonl(source))
            source = folder / "texts.jsonl"
        take_snapshot(params.source, source, raw, before)
        text = open_snapshot(raw, params.source, quarantines=params.on_bad_record == "quarantine")
        named, work = names_in_source(raw, params.source), work or folder / f"{name}-work"
        with worker_processes(num_workers) as workers:
            report = build_corpus(text, params, seed=seed, out=out, work=work, workers=workers, named=named)
        return Built(out, report)

    return build_in


@pytest.fixture
def build(build_in: Build, tmp_path: Path) -> Build:
    return lambda *source, **changes: build_in(tmp_path, *source, **changes)


@pytest.fixture(scope="module")
def texts(words) -> list[str]:
    """300 dissimilar texts; 30 half similar, 30 nearly equal and 10 equal to one of them; some unusable texts."""
    alone = [words(seed, 40) for seed in range(300)]
    alike = [" ".join(text.split()[:30] + words(5_000 + seed, 10).split()) for seed, text in enumerate(alone[:30])]
    nearly = [text + " end" for text in alone[100:130]]
    same = [text.upper().replace(" ", "  ") for text in alone[200:210]]
    return [*alone, *alike, *nearly, *same, "", "short", words(9_000, 900)]


@pytest.fixture(scope="module")
def usual(build_in: Build, texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The corpus of `texts`."""
    return build_in(tmp_path_factory.mktemp("usual"), texts)


def test_every_text_is_kept_or_has_a_reason(usual: Built, texts) -> None:
    report, kept = usual.report, usual.sides
    assert set(usual.contents) == {f"{split}.parquet" for split in SPLITS}
    assert report.documents_read == len(texts) == 373
    assert report.dropped | {"exact_duplicate": 10, "near_duplicate": 30, "empty": 1, "too_short": 1} == report.dropped
    assert report.documents_split == 1
    assert report.kept == len(kept)
    assert report.splits["train"].documents == pytest.approx(0.6 * len(kept), rel=0.1)
    assert all(list(kept.values()).count(split) == report.splits[split].documents for split in SPLITS)
    assert sum(split.bytes for split in report.splits.values()) == sum(len(text.encode()) for text in kept)


def test_no_two_splits_hold_similar_texts(usual: Built) -> None:
    for (one, side), (other, other_side) in itertools.combinations(usual.sides.items(), 2):
        assert side == other_side or true_jaccard(one, other) < 0.5


def test_rows_are_identified_and_shuffled_by_content(usual: Built, texts) -> None:
    rows = pq.read_table(usual.out / "train.parquet").to_pylist()
    assert list(rows[0]) == ["doc_id", "text", "source", "title"]
    ids = [row["doc_id"] for row in rows]
    assert ids == sorted(set(ids))
    assert ids == [identity_of(row["text"]) for row in rows]
    place_of = {row["text"]: texts.index(row["text"]) for row in rows if row["text"] in texts}
    assert abs(np.corrcoef(list(place_of.values()), np.arange(len(place_of)))[0, 1]) < 0.3
    assert all(row["source"] == f"k{place_of[row['text']] % 3}" for row in rows if row["text"] in place_of)


def test_limits_of_length_count_a_wide_character_as_three_and_may_be_in_words(build: Build, texts) -> None:
    """A long text is cut, and its parts stay together; entities are decoded."""
    chinese, korean, short = "人人生而自由在尊严上一律平等", "모든인간은태어날때부터", "人人生而自由"
    added = [chinese, korean, short, f"{'long' * 10} word", "R&amp;D and the rest of the department", texts[-1]]
    built = build([*texts[:40], *added], max_characters=500)
    assert {chinese, korean, f"{'long' * 10} word", "R&D and the rest of the department"} <= built.sides.keys()
    assert built.report.dropped["too_short"] == 1, "six characters count as 18 of 20 letters"
    parts = {text: split for text, split in built.sides.items() if text in texts[-1]}
    assert len(parts) > 5
    assert max(map(len, parts)) <= 500
    assert len(set(parts.values())) == 1
    in_words = build([*texts[:40], *added], "in-words", min_words=3)
    assert in_words.report.dropped["too_short"] == 4


def test_altered_texts_are_counted_by_kind_also_from_kept_results(build: Build, texts, tmp_path) -> None:
    altered = [texts[20] + "\u200b\u200b", "\u202e" + texts[21], texts[22] + "\ud83d"]
    for name in ("one", "two"):
        found = build([*texts[:20], *altered], name, work=tmp_path / "work").report.altered
        told = {kind: number for kind, number in found.items() if number}
        assert told == dict.fromkeys(("lone_surrogates", "zero_width", "direction_marks"), 1)


@pytest.mark.parametrize(
    ("num_workers", "sizes"),
    [
        (2, {"_BLOCK_BYTES": 5_000, "_BATCH_BYTES": 10_000, "_PORTION_BYTES": 20_000}),
        (1, {"_BLOCK_BYTES": 1_000, "_MAX_BATCH_UNITS": 1, "_PORTION_BYTES": 3_000}),
    ],
)
def test_the_output_does_not_depend_on_workers_portions_and_batches(
    build: Build, usual: Built, texts, monkeypatch, num_workers: int, sizes: dict[str, int]
) -> None:
    for name, size in sizes.items():
        module = "records.reading.streams" if name == "_BLOCK_BYTES" else "corpus.cleaning.portions"
        monkeypatch.setattr(f"clozeline.{module}.{name}", size)
    other = build(texts, num_workers=num_workers)
    assert other.report == usual.report
    assert other.contents == usual.contents


def rows_of(split: Path) -> list[tuple[str, str]]:
    parts = (zip(ids.to_pylist(), texts.to_pylist(), strict=True) for ids, texts in columns_of(split, DOC_ID, TEXT))
    return list(chain.from_iterable(parts))


def test_much_text_has_a_file_for_each_range_of_keys(build: Build, usual: Built, texts, monkeypatch) -> None:
    monkeypatch.setattr(buckets, "_FILE_BYTES", 30_000)
    many, by_two = build(texts, "many"), build(texts, "by-two", num_workers=2)
    assert many.report == usual.report
    assert many.contents == by_two.contents
    names = [f"0000{number}.parquet" for number in range(4)]
    for split in SPLITS:
        folder, file = file_of(many.out, split), file_of(usual.out, split)
        expected = [text for _, text in rows_of(file)]
        assert [part.name for part in files_in(folder)] == names
        assert rows_of(folder) == rows_of(file)
        assert num_rows(folder, TEXT) == usual.report.splits[split].documents
        assert [record.text("text") for record in read_records(folder, {"of the text": "text"})] == expected
        assert sorted(sample_of(folder)) == sorted(sample_of(file))
    second = [doc_id for doc_id, _ in rows_of(file_of(many.out, "train") / names[1])]
    assert all("40" <= doc_id < "80" for doc_id in second), "the second of four ranges"


def test_a_file_that_grows_beside_another_moves_no_text_to_another_split(build: Build, texts, words, tmp_path) -> None:
    folder = tmp_path / "feeds"
    folder.mkdir()
    (folder / "a.jsonl").write_text(jsonl(texts[:300]))
    (folder / "b.jsonl").write_text(jsonl(texts[300:]))  # half of them resemble texts of the other file
    before = build(folder, "one").sides
    # Half of each new text is from the end of an earlier one, in either file.
    added = [" ".join(text.split()[-30:] + words(7_000 + seed, 10).split()) for seed, text in enumerate(texts)]
    added.append(f"{texts[50]} and a few words more here")
    with (folder / "a.jsonl").open("a") as file:
        file.write(jsonl(added))
    two = build(folder, "two", before=tmp_path / "one-raw", work=tmp_path / "one-work")
    after = two.sides
    assert len(after) > len(before) + 50
    assert before.items() <= after.items()
    assert two.contents == build(folder, "anew", before=tmp_path / "one-raw").contents, "reused work changes no byte"


def test_another_seed_gives_another_split(build: Build, usual: Built, texts) -> None:
    other = build(texts, seed=2).sides
    assert other.keys() == usual.sides.keys()
    assert other != usual.sides


@pytest.mark.parametrize(
    ("name", "content", "changes", "problem", "do"),
    [
        ("all.txt", "a text of some words\n\n" * 9, {"one_document_per": "file"}, "too little", "one_document_per"),
        ("x.jsonl", jsonl(["short", "", "also"]), {}, "left of 3: .*1 empty, 2 too short", "min_characters"),
        ("x.jsonl", jsonl(["short", "also"]), {"kind": "hub", "dataset": "{folder}"}, "^{folder}: no text is left", ""),
    ],
)
def test_too_little_usable_text_is_refused_by_its_place(build, tmp_path, name, content, changes, problem, do) -> None:
    folder = tmp_path / "dataset"
    folder.mkdir()
    (folder / name).write_text(content)
    placed = {key: value.format(folder=folder) for key, value in changes.items()}
    with pytest.raises(DataError, match=problem.format(folder=folder)) as caught:
        build(folder / name, **{"label_field": None} | placed)
    assert do in caught.value.do


def test_bad_records_are_counted_and_listed_by_their_place_in_the_source(build: Build, texts, tmp_path) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text(jsonl(texts[:50]) + '{"text": 1}\n[]\n')
    with pytest.raises(DataError, match="not text"):
        build(path, "stopped", label_field=None)
    quarantine = {"on_bad_record": "quarantine", "label_field": None, "work": tmp_path / "work"}
    one, two = (build(path, name, **quarantine) for name in ("one", "two"))
    for built in (one, two):
        assert (built.report.dropped["bad_record"], built.report.documents_read) == (2, 52)
    assert one.contents == two.contents
    listed = [json.loads(line) for line in one.contents["bad_records.jsonl"].splitlines()]
    assert [record["place"].rpartition(", ")[2] for record in listed] == ["line 51", "line 52"]
    assert "field `text` is not text" in listed[0]["reason"]
