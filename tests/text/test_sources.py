from pathlib import Path
from typing import get_args

import pytest

from clozeline.errors import DataError
from clozeline.params import SourceParams
from clozeline.text import sources


def test_every_kind_that_params_allow_can_be_opened() -> None:
    assert set(get_args(SourceParams.model_fields["kind"].annotation)) == set(sources._OPENERS)


def test_a_missing_source_is_named_with_its_key(tmp_path: Path, params_of) -> None:
    with pytest.raises(DataError, match="nowhere: no such file or folder") as caught:
        sources.open_source(tmp_path / "nowhere", params_of(path="nowhere").source)
    assert "`source.path`" in caught.value.do


def test_a_kind_opens_what_it_is_for(tmp_path: Path, params_of) -> None:
    (tmp_path / "notes.txt").write_text("a note")
    source = sources.open_source(tmp_path / "notes.txt", params_of().source)
    assert [unit.documents()[0].text for unit in source.units] == ["a note"]
