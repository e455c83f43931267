"""A fingerprint covers the facts, the named files and their content, and nothing else."""

from pathlib import Path

import pytest

import clozeline
from clozeline.system.content import code_of, fingerprint


def test_changed_params_or_code_give_another_fingerprint(tmp_path: Path) -> None:
    code, names = tmp_path / "code.py", []
    for content, rate in (("one = 1\n", 0.1), ("one = 1\n", 0.1), ("one = 1\n", 0.2), ("one = 2\n", 0.1)):
        code.write_text(content)
        names.append(fingerprint({"learning_rate": rate}, [code]))
    assert names[0] == names[1]
    assert len(set(names)) == 3


def test_the_code_hash_covers_only_the_named_folders_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("__init__.py", "errors.py", "encoder/rows.py", "language/shards.py", "records/reading/tokens.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.setattr(clozeline, "__file__", str(tmp_path / "__init__.py"))
    found = [file.relative_to(tmp_path).as_posix() for file in code_of(["language/shards.py", "encoder"])]
    assert found == ["language/shards.py", "encoder/rows.py"]
