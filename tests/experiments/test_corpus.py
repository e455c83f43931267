"""Claim: the corpus of experiments stays what it was when a later run replaces the project's."""

from pathlib import Path

from clozeline.lab.experiment import held

PARTS = ("data/clean/validation.parquet", "data/tokens/train-0.bin", "models/tokenizer/tokenizer.json")


def write(root: Path, text: str) -> None:
    """Write a corpus as stages do: new files take the places of old ones."""
    for part in PARTS:
        (root / part).parent.mkdir(parents=True, exist_ok=True)
        (root / part).unlink(missing_ok=True)
        (root / part).write_text(f"{text} {part}", encoding="utf-8")


def test_a_held_corpus_is_found_again_by_its_content_and_survives_its_replacement(tmp_path: Path) -> None:
    root, kept = tmp_path / "project", tmp_path / "project" / "work"
    write(root, "old")
    old = held(root, kept)
    assert held(root, kept) == old
    write(root, "new")
    new = held(root, kept)
    assert new.digest != old.digest
    assert old.validation_text.read_text(encoding="utf-8") == f"old {PARTS[0]}"
    old.laid_into(tmp_path / "run")
    old.laid_into(tmp_path / "run")
    assert (tmp_path / "run" / PARTS[1]).read_text(encoding="utf-8") == f"old {PARTS[1]}"
