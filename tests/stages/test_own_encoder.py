"""An encoder of one's own goes through the whole line: trained, fine-tuned, exported, and asked through its package."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import clozeline as cz
from tests.toy_line import TINY_EVALUATION, TINY_MODEL, merge, toy_language

PROJECT = Path(__file__).parents[2]
SHRUNK: dict[str, Any] = {
    "tokenize": {"vocab_size": 200},
    "pretrain": {
        "model": {**TINY_MODEL, "family": "mine:build"},
        "max_length": 32,
        "batch_tokens": 256,
        "steps": 20,
        "num_threads": 1,
        "validation": {"every_steps": None},
    },
    "evaluate": TINY_EVALUATION,
    "finetune_defaults": {"shared": {"max_length": 32, "num_threads": 1, "epochs": 2}},
    "export": {"num_agreement_texts": 8},
}


def test_an_own_encoder_is_trained_fine_tuned_exported_and_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (PROJECT / "docs" / "pretraining.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"```python\n(from torch.*?)```", page, re.DOTALL)
    (tmp_path / "mine.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    for module in ("cluster.executors", "stages.snapshot"):
        monkeypatch.setattr(f"clozeline.{module}.available_cores", lambda: 1)
    records = toy_language(600)
    config = cz.Config()
    merge(config, SHRUNK)
    try:
        run = cz.pretrain([record["text"] for record in records], config)
        assert cz.evaluate(run).perplexity < 250
        topics = cz.finetune(run, records[:240], kind="classification", label_field="topic")
        package = cz.export(topics)
    finally:
        sys.modules.pop("mine", None)
    manifest = json.loads((package / "manifest.json").read_text())
    assert manifest["family"] == "clozeline-encoder"
    assert manifest["ladder"], "INT8 was tried"
    answers = cz.load(package).classify([record["text"] for record in records[240:300]])
    right = sum(best.label == record["topic"] for (best,), record in zip(answers, records[240:300], strict=True))
    assert right > 40, "each topic has its own nouns"
