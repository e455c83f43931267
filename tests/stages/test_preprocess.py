"""From a source to its splits: dropped texts are reported, and an unreadable source leaves the text unchanged."""

import errno
import gzip
import json
import random
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from clozeline.corpus.cleaning import building
from clozeline.params.reading import read_params
from clozeline.records.snapshot import FORGOTTEN_LOCK
from clozeline.stages import preprocess, snapshot
from clozeline.system.errors import DataError, StorageError
from tests.make.models import PROJECT
from tests.make.tasks import contents

PARAMS = read_params(PROJECT / "params.yaml").preprocess.model_copy(
    update={"min_characters": 20, "max_characters": 2_000, "validation_fraction": 0.2, "holdout_fraction": 0.2}
)


def run(source: Path, folder: Path, *, seed: int = 1, **changes: float) -> dict[str, Any]:
    """Run both stages from the source on; return the metrics. The text is in `folder`/clean."""
    params = PARAMS.model_copy(
        update={"source": PARAMS.source.model_copy(update={"kind": "files", "path": "texts"}), **changes}
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


def test_the_stage_replaces_the_splits_with_an_account_of_every_text_and_a_second_run_finds_prepared_text(
    tmp_path: Path, good: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    (tmp_path / "clean").mkdir()
    (tmp_path / "clean" / "leftover.parquet").write_text("of an earlier run")
    metrics = run(good, tmp_path)
    assert {file.stem for file in (tmp_path / "clean").iterdir()} == {"holdout", "train", "validation"}
    assert metrics["documents_in"] == 100 == metrics["kept"] + sum(metrics["dropped"].values())
    assert metrics["versions"]["rensa"]
    assert "100 texts in = 100 kept + none dropped" in caplog.text
    assert "100 paragraphs, one document each (`source.one_document_per` changes that)" in caplog.text
    assert "0 of 1 batches of text kept from earlier runs" in caplog.messages
    first = contents(tmp_path / "clean")
    assert run(good, tmp_path) == metrics
    assert "1 of 1 batches of text kept from earlier runs" in caplog.messages
    assert contents(tmp_path / "clean") == first


SHORT = [f"\n\nshort {number}" for number in range(120)]
SAME = "\n\nthe same text, often enough to be most of this source" * 120


@pytest.mark.parametrize(
    ("lost", "told"),
    [
        ("".join(SHORT[:5]), ""),
        ("".join(SHORT[:30]), "30 of 130 texts are too short: lower `preprocess.min_characters`"),
        ("".join(SHORT), "120 of 220 texts were dropped, most of them as too short: lower `preprocess.min_characters`"),
        (SAME, "the source repeats itself"),
    ],
)
def test_many_dropped_texts_are_reported_with_the_reason_and_what_to_do(
    tmp_path: Path, good: Path, lost: str, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    good.write_text(good.read_text() + lost)
    run(good, tmp_path)
    assert told in caplog.text
    assert ("too short" in caplog.text or "were dropped" in caplog.text) == bool(told)


@pytest.mark.parametrize(
    ("num_texts", "told"), [(800, "set `preprocess.validation_fraction` to 0.19"), (100, "fp32 is served"), (1_700, "")]
)
def test_too_few_validation_texts_for_int8_are_reported_with_the_share_to_set(
    tmp_path: Path, num_texts: int, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "texts.txt").write_text(paragraphs(num_texts))
    run(tmp_path / "texts.txt", tmp_path, validation_fraction=0.02, holdout_fraction=0.0)
    assert told in caplog.text
    assert ("INT8 is proven on" in caplog.text) == bool(told)


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("given.txt", None, "no such file or folder"),
        ("given.txt", b"", "no text in 0 bytes"),
        ("given.txt", paragraphs(50).encode("utf-16"), "line 1: not UTF-8"),
        ("given.txt", gzip.compress(paragraphs(50).encode())[:-20], "truncated or damaged"),
        ("given.jsonl", b'{"text": "one"}\n["two"]\n', "line 2: not a JSON object"),
        ("given.txt", paragraphs(2).encode(), "too little text to split"),
    ],
)
def test_bad_input_is_named_and_earlier_outputs_stay(
    tmp_path: Path, name: str, content: bytes | None, named: str
) -> None:
    source, old, metrics = tmp_path / name, tmp_path / "clean" / "train.parquet", tmp_path / "preprocess.json"
    if content is not None:
        source.write_bytes(content)
    old.parent.mkdir()
    for file in (old, metrics):
        file.write_text("of an earlier run")
    with pytest.raises(DataError, match=named):
        run(source, tmp_path)
    assert [file.read_text() for file in (old, metrics)] == ["of an earlier run"] * 2
    assert {file.name for file in tmp_path.iterdir()} <= {name, ".clean-raw", ".work", "clean", metrics.name}


def test_a_full_disk_is_named_and_the_old_corpus_stays(
    tmp_path: Path, good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(good, tmp_path)
    before = contents(tmp_path / "clean")
    monkeypatch.setattr("clozeline.cluster.ledger.available_cores", lambda: 1)  # tasks run in this process
    monkeypatch.setattr(building, "_append", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(StorageError, match="no space left while writing"):
        run(good, tmp_path, seed=2)
    assert contents(tmp_path / "clean") == before
    assert not list(tmp_path.glob(".*partial"))
