"""Each file of configs/ changes params.yaml into params that can be used, and its run ends, at toy size."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import clozeline as cz
from clozeline.params.editing import changes_in, edit
from clozeline.params.reading import default_tree, read_params
from clozeline.records.record import leaves
from tests.conftest import PROJECT
from tests.make.projects import TINY_MODEL, toy_language

CONFIGS = sorted((PROJECT / "configs").glob("*.yaml"))
PUBLISHED = "distilbert/distilbert-base-uncased"
SHRUNK: list[tuple[str, Any]] = [
    ("pretrain.max_length", 32),
    ("pretrain.batch_tokens", 256),
    ("pretrain.num_workers", 0),
    ("pretrain.num_threads", 1),
    ("pretrain.compile", False),
    ("tokenize.vocab_size", 200),
    ("evaluate.max_length", 32),
]


def test_the_documented_configs_are_those_that_exist_and_each_value_differs_from_the_default() -> None:
    page = (PROJECT / "docs" / "own-text.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`configs/([\w-]+\.yaml)`", page)) == {config.name for config in CONFIGS}
    usual = dict(leaves(default_tree()))
    changes = [(config.name, *change) for config in CONFIGS for change in changes_in(config)]
    assert [(name, key) for name, key, value in changes if usual.get(key, ...) == value] == []


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_a_run_with_a_config_makes_an_encoder(config: Path, small_encoder: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(PROJECT / "params.yaml", tmp_path))
    edit(path, changes_in(config), config.name)
    params = read_params(path)
    changes = list(SHRUNK)
    if params.pretrain.start == PUBLISHED:
        changes += [("pretrain.start", str(small_encoder)), ("tokenize.existing", str(small_encoder))]
        changes += [("pretrain.model.family", "modernbert")]
    else:
        changes += [(f"pretrain.model.{name}", value) for name, value in TINY_MODEL.items()]
    if params.pretrain.steps:
        changes.append(("pretrain.steps", 4))
    edit(path, changes, "the test")
    source = tmp_path / params.preprocess.source.path
    records = toy_language(400)
    if source.suffix == ".txt":
        source.write_text("\n".join(record["text"] for record in records), encoding="utf-8")
    else:
        source.mkdir()
        lines = (json.dumps({"text": record["text"]}) for record in records)
        (source / "texts.jsonl").write_text("\n".join(lines), encoding="utf-8")
    run = cz.pretrain(source, cz.Config(path), folder=tmp_path / "run")
    assert (run.folder / run.model / "model.safetensors").is_file()
    assert run.config.pretrain.objective == params.pretrain.objective
