"""From a source to its splits: dropped texts are reported, and an unreadable source leaves the text unchanged."""

import errno
import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

from clozeline.corpus.cleaning import building
from clozeline.params.reading import read_params
from clozeline.records.snapshot import FORGOTTEN_LOCK
from clozeline.stages import preprocess, snapshot
from clozeline.system.errors import ClozelineError, DataError, StorageError
from tests.make.models import PROJECT
from tests.make.tasks import contents

PARAMS = read_params(PROJECT / "params.yaml").preprocess.model_copy(
    update={"min_characters": 20, "max_characters": 2_000, "validation_fraction": 0.2, "holdout_fraction": 0.2}
)


def run(source: Path, folder: Path, *, kind: str = "files", seed: int = 1, **changes: float) -> dict[str, Any]:
    """Run both stages from the source on; return the metrics. The text is in `folder`/clean."""
    params = PARAMS.model_copy(
        update={"source": PARAMS.source.model_copy(update={"kind": kind, "path": "texts"}), **changes}
    )
    raw, none, out, metrics = (folder / name for name in (".clean-raw", FORGOTTEN_LOCK, "clean", "preprocess.json"))
    snapshot.run(params, source=source, forgotten=none, out=raw)
    preprocess.run(params, seed=seed, raw=raw, forgotten=none, out=out, metrics=metrics, work=folder / ".work")
    told: dict[str, Any] = json.loads(metrics.read_text())
    return told


def paragraphs(count: int) -> str:
    draw = random.Random(3)
    return "\n\n".join(" ".join(f"word{draw.randrange(5_000)}" for _ in range(20)) for _ in range(count))


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.txt"
    path.write_text(paragraphs(100))
    return path


@pytest.mark.parametrize(("num_short", "is_told"), [(5, False), (30, True)])
def test_many_texts_that_are_too_short_are_reported_with_the_knob(
    tmp_path: Path, good: Path, num_short: int, is_told: bool, caplog
) -> None:
    good.write_text(good.read_text() + "".join(f"\n\nshort {number}" for number in range(num_short)))
    run(good, tmp_path)
    told = f"{num_short} of {100 + num_short} texts are too short: lower `preprocess.min_characters`"
    assert (told in caplog.text) == is_told


def test_the_stage_writes_the_splits_and_an_account_of_every_text(tmp_path: Path, good: Path, caplog) -> None:
    caplog.set_level("INFO")
    metrics = run(good, tmp_path)
    assert {file.stem for file in (tmp_path / "clean").iterdir()} == {"holdout", "train", "validation"}
    assert metrics["documents_in"] == 100 == metrics["kept"] + sum(metrics["dropped"].values())
    assert metrics["versions"]["rensa"]
    assert "100 texts in = 100 kept + none dropped" in caplog.text
    assert "100 paragraphs, one document each (`source.one_document_per` changes that)" in caplog.text


@pytest.mark.parametrize(
    ("lost", "remedy"),
    [
        ("".join(f"\n\nshort {number}" for number in range(120)), "lower `preprocess.min_characters`"),
        ("\n\nthe same text, often enough to be most of this source" * 120, "the source repeats itself"),
    ],
)
def test_a_source_that_is_dropped_for_the_most_part_says_why_and_what_to_do(
    tmp_path: Path, good: Path, lost: str, remedy: str, caplog
) -> None:
    good.write_text(good.read_text() + lost)
    run(good, tmp_path)
    assert remedy in next(message for message in caplog.messages if "texts were dropped, most of them as" in message)


@pytest.mark.parametrize(
    ("num_texts", "fraction", "told"),
    [
        (800, 0.02, "set `preprocess.validation_fraction` to 0.19"),
        (100, 0.02, "fp32 is served until there is more text"),
        (1_700, 0.02, ""),
    ],
)
def test_too_few_validation_texts_for_int8_are_reported_with_the_share_to_set(
    tmp_path: Path, num_texts: int, fraction: float, told: str, caplog
) -> None:
    (tmp_path / "texts.txt").write_text(paragraphs(num_texts))
    run(tmp_path / "texts.txt", tmp_path, validation_fraction=fraction, holdout_fraction=0.0)
    assert told in caplog.text
    assert ("INT8 is proven on" in caplog.text) == bool(told)


def test_two_runs_write_the_same_bytes(tmp_path: Path, good: Path) -> None:
    for name in ("one", "two"):
        run(good, tmp_path / name)
    assert contents(tmp_path / "one/clean") == contents(tmp_path / "two/clean")
    assert (tmp_path / "one/preprocess.json").read_bytes() == (tmp_path / "two/preprocess.json").read_bytes()


def test_a_second_run_finds_the_prepared_text_of_the_first(tmp_path: Path, good: Path, caplog) -> None:
    caplog.set_level("INFO")
    for number in range(2):
        run(good, tmp_path, seed=number)
        assert f"{number} of 1 batches of text kept from earlier runs" in caplog.messages


BAD = {
    "missing source": (None, "no such file or folder"),
    "empty file": (b"", "no text in 0 bytes"),
    "blank file": (b" \n\n \n", "no text in 5 bytes"),
    "UTF-16": (paragraphs(50).encode("utf-16"), "line 1: not UTF-8"),
    "Latin-1": ((paragraphs(50) + "\n\ncafé").encode("latin-1"), "line 101, byte .*: not UTF-8"),
    "truncated gzip": (gzip.compress(paragraphs(50).encode())[:-20], "truncated or damaged"),
    "JSON that is no object": (b'{"text": "one"}\n["two"]\n', "line 2: not a JSON object"),
    "JSON without the field": (b'{"body": "one"}\n', "line 1: no field `text`"),
    "too little to split": (paragraphs(2).encode(), "too little text to split"),
}


@pytest.mark.parametrize("fault", BAD)
def test_bad_input_is_named_and_earlier_outputs_stay(tmp_path: Path, fault: str) -> None:
    content, message = BAD[fault]
    source = tmp_path / "given.jsonl" if "JSON" in fault else tmp_path / "given.txt"
    if content is not None:
        source.write_bytes(content)
    out, metrics = tmp_path / "clean", tmp_path / "preprocess.json"
    out.mkdir()
    (out / "train.parquet").write_text("of an earlier run")
    metrics.write_text("of an earlier run")

    with pytest.raises(DataError, match=message) as caught:
        run(source, tmp_path)

    error = caught.value
    assert "given" in error.problem or "texts" in error.problem
    assert error.do
    assert (out / "train.parquet").read_text() == "of an earlier run"
    assert metrics.read_text() == "of an earlier run"
    assert {file.name for file in tmp_path.iterdir()} <= {source.name, ".clean-raw", ".work", out.name, metrics.name}


def test_an_empty_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    with pytest.raises(DataError, match="texts: no file matches"):
        run(tmp_path / "texts", tmp_path)


def test_a_source_of_the_wrong_kind_is_named(tmp_path: Path, good: Path) -> None:
    with pytest.raises(DataError, match=r"good\.txt: not a complete MediaWiki dump"):
        run(good, tmp_path, kind="wikipedia-xml")
    with pytest.raises(DataError, match=r"good\.txt, line 1: not a pinned package"):
        run(good, tmp_path, kind="python-docs")


def test_a_full_disk_is_named_and_the_old_corpus_stays(tmp_path: Path, good: Path, monkeypatch) -> None:
    run(good, tmp_path)
    before = (tmp_path / "clean" / "train.parquet").read_bytes()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("clozeline.cluster.ledger.available_cores", lambda: 1)  # tasks run in this process
    monkeypatch.setattr(building, "_append", full)
    with pytest.raises(StorageError, match="no space left while writing") as caught:
        run(good, tmp_path, seed=2)
    assert isinstance(caught.value, ClozelineError)
    assert (tmp_path / "clean" / "train.parquet").read_bytes() == before
    assert not list(tmp_path.glob(".*partial"))


def test_a_successful_run_replaces_the_whole_old_corpus(tmp_path: Path, good: Path) -> None:
    out = tmp_path / "clean"
    out.mkdir()
    (out / "leftover.parquet").write_text("of an earlier run")
    run(good, tmp_path)
    assert not (out / "leftover.parquet").exists()
