"""Claim: an imported package whose folder was deleted comes back from DVC's cache, and its stage does not run again."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import BertModel

from clozeline.orchestration.import_items import items_file, write_items
from clozeline.params.editing import edit
from clozeline.records.finetune.scored_items import HeldOut
from clozeline.records.package import FILES
from clozeline.records.published import Published
from clozeline.versions import reproduce
from clozeline.versions.reproduce import EXIT_CODES
from tests.make.models import SENTENCES, SaveTrained, small_bert
from tests.make.projects import copy_project, write_params
from tests.make.tasks import contents
from tests.stages.test_whole_line import environment

FEW = {"num_agreement_texts": 8, "static_ratios": []}


def said(root: Path, *command: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=root, env=environment(root), capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def root(save_trained: SaveTrained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that imported a model, whose folder is gone: the stage could not run again."""
    root = copy_project(tmp_path_factory.mktemp("importing") / "project")
    subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)
    torch.manual_seed(5)
    shutil.copytree(save_trained(BertModel(small_bert(), add_pooling_layer=False)), root / "model")
    write_params(root, {"export": FEW})
    write_items(root / items_file("mini"), [HeldOut(text=text) for text in SENTENCES])
    entry = {
        "model": "model",
        "revision": None,
        "task": "feature-extraction",
        "pooling": "mean",
        "prompts": {},
        "default_prompt": None,
        "max_length": 32,
        "reads_pairs": False,
        "items": items_file("mini"),
        "sha256": Published(str(root / "model"), None).sha256(),
    }
    edit(root / "params.yaml", [("imports.mini", entry)], "test")
    said(root, "clozeline", "params", "--out", "data/params.yaml")
    said(root, reproduce.__name__, "import@mini", code=EXIT_CODES["executed"])
    shutil.rmtree(root / "model")
    return root


@pytest.fixture(scope="module")
def packaged(root: Path) -> dict[str, bytes]:
    """The files of the package as the stage made them."""
    return contents(root / "dist/mini")


def checked_out(root: Path) -> None:
    said(root, "dvc", "checkout", "dist/mini")


def reproduced(root: Path) -> None:
    assert "Running stage 'import" not in said(root, "dvc", "repro", "import@mini")


def brought_up_to_date(root: Path) -> None:
    said(root, reproduce.__name__, "import@mini", code=EXIT_CODES["restored"])


@pytest.mark.parametrize("restore", [checked_out, reproduced, brought_up_to_date])
def test_a_deleted_package_comes_back_byte_for_byte(
    root: Path, packaged: dict[str, bytes], restore: Callable[[Path], None]
) -> None:
    assert {FILES.manifest, FILES.fp32} <= set(packaged)
    shutil.rmtree(root / "dist")
    restore(root)
    assert contents(root / "dist/mini") == packaged
