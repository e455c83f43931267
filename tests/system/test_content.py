"""A fingerprint covers the facts, the named files and their content, and nothing else."""

from pathlib import Path

import pytest

import clozeline
from clozeline.system.content import code_of, fingerprint


def test_changed_params_or_code_give_another_fingerprint(tmp_path: Path) -> None:
    code = tmp_path / "code.py"
    code.write_text("one = 1\n")
    first = fingerprint({"learning_rate": 0.1}, [code])
    assert fingerprint({"learning_rate": 0.1}, [code]) == first
    assert fingerprint({"learning_rate": 0.2}, [code]) != first
    code.write_text("one = 2\n")
    assert fingerprint({"learning_rate": 0.1}, [code]) != first


def test_the_code_hash_covers_only_the_named_folders_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = [
        "__init__.py",
        "errors.py",
        "params/text.py",
        "encoder/rows.py",
        "language/shards.py",
        "records/reading/tokens.py",
    ]
    for name in inside:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.setattr(clozeline, "__file__", str(tmp_path / "__init__.py"))
    found = [file.relative_to(tmp_path).as_posix() for file in code_of(["language/shards.py", "encoder"])]
    assert found == ["language/shards.py", "encoder/rows.py"]
