"""The lines of docs/python.md do what they say, and the files that they make are those of the stages."""

import re
import shutil
from collections.abc import Iterator
from contextlib import redirect_stdout
from copy import deepcopy
from dataclasses import dataclass
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoModelForMaskedLM, AutoTokenizer
from typer.testing import CliRunner

import clozeline as cz
from clozeline.cli import app
from clozeline.params.reading import default_tree
from clozeline.stages.calling.calls import own_graph
from tests.make.projects import TINY_EVALUATION, TINY_MODEL, TOPICS, merge, toy_language
from tests.make.tasks import contents

PROJECT = Path(__file__).parents[3]
PAGE = (PROJECT / "docs" / "python.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SHRUNK: dict[str, Any] = {
    "pretrain": {
        **{"model": TINY_MODEL, "max_length": 32, "batch_tokens": 256},
        **{"num_threads": 1, "validation": {"every_steps": 250}},
    },
    "evaluate": TINY_EVALUATION,
    "finetune_defaults": {"shared": {"max_length": 32, "num_threads": 1}},
    "export": {"num_agreement_texts": 8, "ladder": []},
}


@dataclass
class Executed:
    """What the lines have made in `folder`."""

    folder: Path
    names: dict[str, Any]
    printed: str


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executed]:
    """All Python of the page, executed in its order, with a tiny model in place of the default one."""
    folder = tmp_path_factory.mktemp("python")
    records = toy_language(900)
    names: dict[str, Any] = {"texts": [record["text"] for record in records], "rows": records[:300]}
    defaults = default_tree()
    merge(defaults, SHRUNK)
    printed = StringIO()
    with pytest.MonkeyPatch.context() as patched, redirect_stdout(printed):
        patched.chdir(folder)
        patched.setattr("clozeline.params.reading.default_tree", lambda: deepcopy(defaults))
        for module in ("cluster.ledger", "stages.snapshot"):
            patched.setattr(f"clozeline.{module}.available_cores", lambda: 1)
        for block in BLOCKS:
            exec(block, names)
        yield Executed(folder, names, printed.getvalue())


def test_from_texts_to_a_model_it_takes_ten_lines() -> None:
    lines = [line for line in BLOCKS[0].splitlines() if line]
    assert len(lines) <= 10
    assert "cz.load(" in lines[-1]
    assert BLOCKS[0] in (PROJECT / "README.md").read_text(encoding="utf-8")
    assert [getattr(cz, name).__name__ for name in cz.__all__] == list(cz.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'pretrian'"):
        cz.__getattr__("pretrian")


def test_the_encoder_has_learned_and_is_loaded_asked_and_fine_tuned(executed: Executed) -> None:
    run, figures, model = (executed.names[name] for name in ("run", "figures", "model"))
    assert figures.perplexity < figures.unigram_perplexity
    weights = AutoModelForMaskedLM.from_pretrained(executed.folder / run.model, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(executed.folder / run.model, local_files_only=True)
    assert weights.config.vocab_size == len(tokenizer)
    corpus = run.folder / default_tree()["preprocess"]["source"]["path"]  # where the built-in text reads packages
    assert f"numpy=={version('numpy')}" in corpus.read_text(encoding="utf-8").splitlines()
    assert "validation text: " in executed.printed, "the callback heard the curve"
    assert "rename it to `steps`" in executed.printed
    (masks,) = model.fill("the [MASK] is open.", top_k=3)
    assert [len(words) for words in masks] == [3]
    assert executed.names["vectors"].shape == (2, TINY_MODEL["hidden_size"])
    texts = ["the door is open", "the [MASK]"]
    for embedding_H, hidden_LH in zip(model.embed(texts), model.tokens(texts), strict=True):
        mean_H = hidden_LH.mean(axis=0)
        np.testing.assert_allclose(embedding_H, mean_H / np.linalg.norm(mean_H), atol=1e-5)
    assert executed.names["task"].figures["headline"]["metric"] == "accuracy"
    (labels, _) = executed.names["classifier"].classify(["the door is open", "the sea is calm"])
    assert labels[0].label in TOPICS
    with pytest.raises(cz.ParamsError, match="by `classify`"):
        executed.names["classifier"].fill("the [MASK].")
    with pytest.raises(cz.ParamsError, match="by `fill` or `embed` or `tokens`"):
        model.answer(("What is open?", "The door is open."))


def test_a_page_and_a_notebook_show_curves_masks_and_guesses(
    executed: Executed, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (executed.folder / "run.html").read_text(encoding="utf-8")
    assert [told for told in ("<polyline", "five likeliest", "<mark") if told not in page] == []
    monkeypatch.chdir(executed.folder)
    for shown, told in ((executed.names["run"], "hidden"), (executed.names["task"], "Task ")):
        made = shown._repr_html_()
        assert (made.startswith("<iframe "), told in made) == (True, True)
        assert made.count("<") == 2, "all of the page is quoted"


def test_the_files_are_those_of_the_stages(executed: Executed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same text and params in another folder, by the commands of dvc.yaml."""
    run = cz.Run(executed.folder / "my-run")
    for root, names in ((run.folder, ("params.yaml", "texts.jsonl")), (PROJECT, ("forgotten.lock", "start.lock"))):
        for name in names:
            shutil.copy(root / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    stages = own_graph()["stages"]
    for stage in ("snapshot", "preprocess", "tokenize", "pretrain"):
        command = stages[stage]["cmd"].replace("${preprocess.source.path}", "texts.jsonl")
        assert command.startswith("python -m clozeline ")
        CliRunner().invoke(app, command.split()[3:], catch_exceptions=False)
    made = contents(tmp_path / "models" / "encoder")
    assert "model.safetensors" in made
    assert made == contents(run.folder / "models" / "encoder")
