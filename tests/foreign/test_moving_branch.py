"""All that is read of a name on the hub is of one commit, although its branch moves between two requests."""

from collections.abc import Callable
from pathlib import Path

import pytest

from clozeline.lab.contest import Contender
from clozeline.pretraining.starting import token_ids
from clozeline.records.published import pinned
from clozeline.tokenizing.tokenizer.vocabulary.opening import open_published, vocabulary_of
from tests.make.models import NAME, OLD, MovingHub


@pytest.fixture
def hub(tmp_path: Path, small_encoder: Path, offline_hub: None, monkeypatch: pytest.MonkeyPatch) -> MovingHub:
    hub = MovingHub(tmp_path / "cache", small_encoder)
    hub.answer_in(monkeypatch)
    return hub


def test_a_hub_name_is_pinned_to_a_commit_and_a_folder_is_not(hub: MovingHub, tmp_path: Path) -> None:
    assert pinned(NAME, None) == OLD
    assert pinned(NAME, OLD) == OLD
    assert pinned(str(tmp_path), None) is None
    assert pinned("someone/else", "main") == "main", "the opening function reports the missing commit"


def test_a_tokenizer_without_a_model_has_a_commit_too(hub: MovingHub) -> None:
    (hub.files / "config.json").unlink()
    assert pinned(NAME, "main") == OLD


@pytest.mark.parametrize(
    "read",
    [
        lambda scratch: open_published(NAME),
        lambda scratch: vocabulary_of(NAME, None),
        lambda scratch: token_ids(NAME, None, "mlm"),
        lambda scratch: Contender.open(NAME, scratch),
    ],
)
def test_everything_is_read_from_one_commit(hub: MovingHub, read: Callable[[Path], object], tmp_path: Path) -> None:
    read(tmp_path / "scratch")
