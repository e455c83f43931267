"""Claim: a published sentence encoder becomes a package whose vectors are those that its files describe."""

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, BertModel

from clozeline.inference.language import Embedder
from clozeline.inference.package import load
from clozeline.params.delivery import ImportParams
from clozeline.params.project import Params
from clozeline.params.reading import read_params
from clozeline.records.finetune.scored_items import HeldOut
from clozeline.records.package import read_manifest
from clozeline.records.published import Published
from clozeline.system.errors import ArtifactError, DataError, ParamsError
from tests.make.models import PROJECT, SENTENCES, SaveTrained, sentence_tokenizer, small_bert

stage = import_module("clozeline.stages.import")  # `import` is a word of Python
PROMPT = "the encoder reads: "


@pytest.fixture(scope="module")
def params() -> Params:
    return read_params(PROJECT / "params.yaml")


@pytest.fixture(scope="module")
def published(save_trained: SaveTrained) -> Path:
    """With weights in shards and vocab.txt alone, as some are published."""
    torch.manual_seed(5)
    model = BertModel(small_bert(), add_pooling_layer=False)
    folder = save_trained(model)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="20KB")
    vocabulary = sentence_tokenizer().get_vocab()
    (folder / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=vocabulary.__getitem__)))
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 96}')
    (folder / "README.md").write_text("---\nlicense: mit\n---\n\n# A model\n")
    return folder


@pytest.fixture(scope="module")
def entry(published: Path) -> ImportParams:
    return ImportParams(
        model=str(published),
        revision=None,
        task="feature-extraction",
        pooling="cls",
        prompts={"query": PROMPT},
        default_prompt="query",
        max_length=64,
        reads_pairs=False,
        items="items.jsonl",
        sha256=Published(str(published), None).sha256(),
    )


@pytest.fixture(scope="module")
def items(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("items") / "items.jsonl"
    both = zip(SENTENCES, SENTENCES[1:] + SENTENCES[:1], strict=True)
    pairs = [HeldOut(text=one, second=other, score=number) for number, (one, other) in enumerate(both)]
    file.write_text("".join(f"{pair.model_dump_json(exclude_defaults=True)}\n" for pair in pairs))
    return file


@pytest.fixture(scope="module")
def package(entry: ImportParams, items: Path, params: Params, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("imported") / "mine"
    export = params.export.model_copy(update={"ladder": params.export.ladder[:1], "static_ratios": ()})
    stage.run(
        entry, export, items=items, lock=PROJECT / "requirements.lock", out=out, metrics=out.parent / "metrics.json"
    )
    return out


def test_its_vectors_are_pooled_and_prompted_as_published(package: Path, published: Path) -> None:
    ours = load(package, precision="fp32")
    assert isinstance(ours, Embedder)
    tokenizer, theirs = AutoTokenizer.from_pretrained(published), BertModel.from_pretrained(published)
    asked = tokenizer([PROMPT + SENTENCES[4]], return_tensors="pt")
    with torch.no_grad():
        first_1H = theirs.eval()(**asked).last_hidden_state[:, 0]
    expected_1H = torch.nn.functional.normalize(first_1H, dim=-1).numpy()
    assert np.allclose(ours.embed([SENTENCES[4]]), expected_1H, atol=1e-5)


def test_a_prompt_that_the_model_does_not_have_is_refused(package: Path) -> None:
    ours = load(package, precision="fp32")
    assert isinstance(ours, Embedder)
    default = ours.embed([SENTENCES[4]])
    assert np.array_equal(default, ours.embed([SENTENCES[4]], prompt_name="query"))
    with pytest.raises(ParamsError, match="no prompt passage, only query"):
        ours.embed([SENTENCES[4]], prompt_name="passage")


def test_its_files_are_as_they_were_published(package: Path, published: Path) -> None:
    assert len(list(published.glob("model-*.safetensors"))) > 1
    assert (published / "tokenizer_config.json").read_text() == '{"model_max_length": 96}'
    assert not (published / "tokenizer.json").exists()


def test_the_manifest_says_what_was_published(package: Path) -> None:
    manifest = read_manifest(package)
    assert (manifest.task, manifest.max_length, manifest.prompts) == ("feature-extraction", 64, {"query": PROMPT})
    assert manifest.outputs[0].meaning.startswith("last hidden state of the first token")


def test_the_card_keeps_the_licence_and_names_the_model(package: Path, published: Path) -> None:
    card = (package / "README.md").read_text()
    assert "license: mit" in card
    assert f"base_model: {published}" in card


def test_other_weights_than_those_imported_are_refused(
    entry: ImportParams, items: Path, params: Params, tmp_path: Path
) -> None:
    other = entry.model_copy(update={"sha256": {**entry.sha256, "model.safetensors": "0" * 64}})
    with pytest.raises(ArtifactError, match="not the file that was imported"):
        stage.run(
            other, params.export, items=items, lock=items, out=tmp_path / "out", metrics=tmp_path / "metrics.json"
        )
    assert not list(tmp_path.iterdir())


def test_an_empty_file_of_items_is_refused(entry: ImportParams, params: Params, tmp_path: Path) -> None:
    items = tmp_path / "items.jsonl"
    items.write_text("")
    with pytest.raises(DataError, match="0 items"):
        stage.run(
            entry, params.export, items=items, lock=items, out=tmp_path / "out", metrics=tmp_path / "metrics.json"
        )
