from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from clozeline.corpus.cleaning import portions
from clozeline.corpus.cleaning.documents import Document, DropReason
from clozeline.corpus.cleaning.portions import KINDS, opened
from clozeline.corpus.sources import python_docs
from clozeline.corpus.sources.python_docs import documented_modules
from clozeline.params.text import SourceParams
from clozeline.system.errors import ArtifactError
from tests.make.texts import take_snapshot


def documents(raw: Path, params: SourceParams) -> list[Document]:
    text = portions.open_snapshot(raw, params)
    return [document for unit in opened(text.files, text.reading).units for document in unit.documents()]


def test_every_kind_that_params_allow_can_be_opened() -> None:
    assert set(get_args(SourceParams.model_fields["kind"].annotation)) == set(KINDS)


def test_a_file_is_read_from_its_snapshot_with_its_name_as_label(tmp_path: Path, params_of) -> None:
    (tmp_path / "notes.txt").write_text("a note")
    take_snapshot(params_of().source, tmp_path / "notes.txt", tmp_path / "raw")
    (tmp_path / "notes.txt").unlink()
    assert documents(tmp_path / "raw", params_of().source) == [Document("a note", "notes.txt")]


def test_docstrings_keep_library_title_and_entities(tmp_path: Path, params_of, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = [module for module in documented_modules(Path("/dev/null")) if module.name.split(".")[0] == "json"]
    broken = tmp_path / "broken.py"
    broken.write_text("print 'Python 2'")
    modules.append(replace(modules[0], path=broken, name="json.broken"))
    monkeypatch.setattr(python_docs, "documented_modules", lambda lock: modules)
    params = params_of(kind="python-docs", path="lock.txt").source
    (tmp_path / "lock.txt").touch()
    take_snapshot(params, tmp_path / "lock.txt", tmp_path / "raw")
    text = portions.open_snapshot(tmp_path / "raw", params)
    source = opened(text.files, text.reading)
    found = [document for unit in source.units for document in unit.documents()]
    assert not text.decode_entities
    assert text.raw_bytes == sum(module.size_bytes for module in modules)
    assert source.meter.done_bytes == source.total_bytes
    assert [document.title for document in found[:3]] == ["json", "json.dump", "json.dumps"]
    assert {document.source for document in found} == {"python"}
    assert found[-1] == Document("", "python", "json.broken", DropReason.UNREADABLE)


def test_a_snapshot_of_another_source_is_refused(tmp_path: Path, params_of) -> None:
    (tmp_path / "notes.txt").write_text("a note")
    take_snapshot(params_of(path="theirs").source, tmp_path / "notes.txt", tmp_path / "raw")
    with pytest.raises(ArtifactError, match="snapshot of another source") as caught:
        portions.open_snapshot(tmp_path / "raw", params_of(path="ours").source)
    assert "theirs" in str(caught.value)
    assert "ours" in str(caught.value)


@pytest.mark.parametrize("fault", ["no manifest", "damaged manifest", "missing file", "cut file"])
def test_an_incomplete_snapshot_is_refused(tmp_path: Path, params_of, fault: str) -> None:
    (tmp_path / "notes.txt").write_text("a note")
    raw = tmp_path / "raw"
    (file,) = take_snapshot(params_of().source, tmp_path / "notes.txt", raw).files
    damage = {
        "no manifest": lambda: (raw / "manifest.json").unlink(),
        "damaged manifest": lambda: (raw / "manifest.json").write_text("{"),
        "missing file": lambda: (raw / file.object_name).unlink(),
        "cut file": lambda: (raw / file.object_name).write_text("a"),
    }
    damage[fault]()
    with pytest.raises(ArtifactError, match="not a complete snapshot"):
        portions.open_snapshot(raw, params_of().source)
