"""Claim: `clozeline init` ends with the next command to type."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from clozeline.cli import app


@pytest.mark.parametrize(("folder", "next_command"), [(".", "`clozeline run`"), ("mine", "`cd mine && clozeline run`")])
def test_a_new_project_says_where_its_text_goes_and_what_to_type(
    folder: str, next_command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["init", folder, "--template", "lines"])
    assert result.exit_code == 0, result.output
    assert f"Put your text at {Path(folder) / 'sentences.txt'}, then: {next_command}" in result.output
    assert (tmp_path / folder / "params.yaml").is_file()
