"""A new version of an import is tried on the user's answers, and held without them."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from clozeline.artifacts.finetune.model.held_out import HeldOut
from clozeline.importing.built_in import built_in_items
from clozeline.importing.items_file import write_items
from clozeline.orchestration.trials import Trials, Tried
from clozeline.params import ImportParams, read_params
from clozeline.registry import Registered
from clozeline.workspace import Workspace
from tests.tiny_packages import write_embedder
from tests.trained_models import PROJECT

CHAMPION = Registered("clozeline-mine", "1", run_id="1", package_sha256="0" * 64, was_rolled_back=False)
SCORED = [HeldOut(text="the list", second=f"the {word}", score=n) for n, word in enumerate(("list", "file", "open"))]


def tried(root: Path, items: list[HeldOut], monkeypatch: pytest.MonkeyPatch) -> Tried:
    """Result for the import `mine`, whose package is the champion's too."""
    write_embedder(root / "dist/mine")
    (root / "dvc.lock").write_text("schema: '2.0'\nstages: {}\n")
    write_items(root / "imports/mine.jsonl", items)
    monkeypatch.setattr("clozeline.orchestration.trials.fetch", lambda *_: SimpleNamespace(folder=root / "dist/mine"))
    entry = ImportParams(
        model="m", revision=None, task="feature-extraction", pooling="mean", prompts={}, default_prompt=None,
        max_length=16, reads_pairs=False, items="imports/mine.jsonl", sha256={},
    )  # fmt: skip
    params = read_params(PROJECT / "params.yaml").model_copy(update={"imports": {"mine": entry}})
    return Trials(Workspace(root), params, "mine").against(CHAMPION)


@pytest.mark.parametrize(
    "items",
    [built_in_items("feature-extraction", reads_pairs=False), [HeldOut(text=text) for text in ("the list", "a file")]],
)
def test_an_import_without_the_users_answers_is_held_and_learns_how_to_give_them(
    items: list[HeldOut], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = tried(tmp_path, items, monkeypatch)
    assert found.figures is None
    assert "`clozeline import --labelled FILE`" in found.why_not


def test_an_import_with_labelled_pairs_is_compared_on_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = tried(tmp_path, SCORED, monkeypatch)
    assert found.figures is not None
    assert (found.figures.metric, found.figures.difference) == ("Spearman correlation", 0)
