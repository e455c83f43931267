"""Claim: a published model is imported by one command, and its package gives the published answers.

Weights in shards and a vocabulary alone are read as they are.
"""

import json
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, BertModel
from typer.testing import CliRunner

from clozeline.cli import app, published
from clozeline.inference.package import load
from clozeline.params.reading import read_params
from clozeline.records.package import read_manifest
from clozeline.system.errors import ArtifactError, DataError, ParamsError
from clozeline.system.workspace import Workspace
from tests.make.models import PROJECT, RANDOM, SENTENCES, outspoken, sentence_tokenizer, small_bert
from tests.make.tasks import contents
from tests.orchestration.test_importing import sentence_files

stage = import_module("clozeline.stages.import")  # `import` is a word of Python
PROMPT = "the encoder reads: "


def package(workspace: Workspace, called: str, **changes: Any) -> None:
    """Run the stage in this process, as the command has it run by DVC, with gates for random weights."""
    params, root = read_params(workspace.root / "params.yaml"), workspace.root
    few = {"num_agreement_texts": 32, "static_ratios": (), "ladder": params.export.ladder[:1]}
    entry = params.imports[called].model_copy(update=changes)
    with RANDOM.applied() as gates:
        stage.run(
            entry,
            params.export.model_copy(update={"gates": gates, **few}),
            items=root / entry.items,
            lock=root / "dvc.yaml",
            out=root / "dist" / called,
            metrics=root / "metrics.json",
        )


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operators_made_once: None) -> Path:
    """A project in which `clozeline import` packages the model in this process.

    Times and the bill of materials, which other tests examine, are left out: they take a third of the stage.
    """
    for file in ("params.yaml", "dvc.yaml"):
        shutil.copy(PROJECT / file, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(published, "_package", package)
    monkeypatch.setattr("clozeline.exporting.packaging.write_sbom", lambda *_: None)
    monkeypatch.setattr("clozeline.exporting.packaging.measure", lambda *_, **__: "at once")
    return tmp_path


def test_its_answers_are_the_published_ones_and_int8_gives_them_too(project: Path) -> None:
    """A BERT without a head, its weights in shards and vocab.txt alone."""
    config = small_bert()
    config.num_hidden_layers = 1
    torch.manual_seed(3)
    stock = outspoken(BertModel(config)).eval()
    stock.save_pretrained(project / "model", max_shard_size="20KB")
    vocabulary = sentence_tokenizer().get_vocab()
    (project / "model/vocab.txt").write_text("\n".join(sorted(vocabulary, key=vocabulary.__getitem__)))
    (project / "model/README.md").write_text("---\nlicense: mit\n---\n\n# A model\n")
    prompts = {"prompts": {"query": PROMPT}, "default_prompt_name": "query"}
    files = {"config_sentence_transformers.json": prompts, "sentence_bert_config.json": {"max_seq_length": 64}}
    for name, facts in sentence_files({"pooling_mode_cls_token": True}, **files).items():
        file = project / "model" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(facts))
    CliRunner().invoke(app, ["import", "model", "--no-release"], catch_exceptions=False)

    tokenizer = AutoTokenizer.from_pretrained(project / "model")
    with torch.inference_mode():
        first_1H = stock(**tokenizer([PROMPT + SENTENCES[4]], return_tensors="pt")).last_hidden_state[:, 0]
    expected_1H = torch.nn.functional.normalize(first_1H, dim=-1).numpy()
    parity = read_params(PROJECT / "params.yaml").export.max_parity_difference
    for precision, most in (("fp32", parity), ("int8", 0.1)):
        model: Any = load(project / "dist/model", precision=precision)
        np.testing.assert_allclose(model.embed([SENTENCES[4]]), expected_1H, atol=most)
        assert np.array_equal(model.embed([SENTENCES[4]]), model.embed([SENTENCES[4]], prompt_name="query"))
    with pytest.raises(ParamsError, match="no prompt passage, only query"):
        model.embed([SENTENCES[4]], prompt_name="passage")
    assert len(list((project / "model").glob("model-*.safetensors"))) > 1
    assert not (project / "model/tokenizer.json").exists(), "its files stay as published"
    manifest, card = read_manifest(project / "dist/model"), (project / "dist/model/README.md").read_text()
    assert (manifest.task, manifest.served) == ("feature-extraction", "int8")
    assert (manifest.max_length, manifest.prompts) == (64, {"query": PROMPT})
    assert manifest.outputs[0].meaning.startswith("last hidden state of the first token")
    assert {"license: mit", "base_model: model"} <= {*card.splitlines()}

    (project / "none.jsonl").touch()
    before = contents(project / "dist")
    with pytest.raises(ArtifactError, match="not the file that was imported"):
        package(Workspace(project), "model", sha256={"model.safetensors.index.json": "0" * 64})
    with pytest.raises(DataError, match="0 items"):
        package(Workspace(project), "model", items="none.jsonl")
    assert contents(project / "dist") == before
