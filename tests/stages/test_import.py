"""Claim: a published model is imported by one command, and its package gives the published answers.

Weights in shards and a vocabulary alone are read as they are. A deleted package comes back from DVC's cache, and its
stage does not run again.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoTokenizer, PreTrainedModel, pipeline
from typer.testing import CliRunner

from clozeline.cli import app, published
from clozeline.inference.package import load
from clozeline.orchestration.import_items import items_file, write_items
from clozeline.params.editing import edit
from clozeline.params.reading import read_params
from clozeline.records.finetune.scored_items import HeldOut
from clozeline.records.package import FILES, read_manifest
from clozeline.records.published import Published
from clozeline.system.errors import ArtifactError, DataError, ParamsError
from clozeline.system.workspace import Workspace
from clozeline.versions import reproduce
from tests.make.models import PROJECT, RANDOM, SENTENCES, outspoken, sentence_tokenizer, small_bert
from tests.make.projects import copy_project, write_params
from tests.make.tasks import contents
from tests.orchestration.test_importing import sentence_files
from tests.stages.test_whole_line import environment

stage = import_module("clozeline.stages.import")  # `import` is a word of Python
MASKED = ["the encoder [MASK] a sentence", "a tokenizer cuts [MASK] into pieces"]
PAIR = (SENTENCES[0], SENTENCES[1])
PROMPT = "the encoder reads: "
VECTORS = "sentence vectors"
# Answers of a model: what it names, and with which numbers.
Said = Sequence[tuple[str, Any]]


def first_token(model: Any, tokenizer: Any) -> Said:
    first_1H = model(**tokenizer([PROMPT + SENTENCES[4]], return_tensors="pt")).last_hidden_state[:, 0]
    return [("", torch.nn.functional.normalize(first_1H, dim=-1).numpy())]


def piped(task: str, given: Any, name: str, **options: Any) -> Callable[[Any, Any], Said]:
    """Answers of transformers' own pipeline, called by these fields of theirs."""

    def answer(model: Any, tokenizer: Any) -> Said:
        found = pipeline(task, model=model, tokenizer=tokenizer, device="cpu")(given, **options)
        flat = found if isinstance(found, list) else [found]
        flat = [one for each in flat for one in (each if isinstance(each, list) else [each])]
        return [(name.format(**one), one["score"]) for one in flat]

    return answer


def of_labels(found: Sequence[Sequence[Any]]) -> Said:
    return [(one.label, one.score) for each in found for one in each]


@dataclass(frozen=True)
class Kind:
    """How a model is published, and what it answers."""

    head: str
    task: str
    ours: Callable[[Any], Said]
    theirs: Callable[[Any, Any], Said]  # from the model and its tokenizer, as transformers opens them
    labels: Sequence[str] = ()
    files: Mapping[str, Any] = field(default_factory=dict)


CLASSIFIER, LABELS = "BertForSequenceClassification", "text-classification"
KINDS = {
    "masks": Kind(
        "BertForMaskedLM",
        "fill-mask",
        lambda it: [(str(one.token), one.score) for text in it.fill(MASKED, top_k=1) for mask in text for one in mask],
        piped("fill-mask", MASKED, "{token}", top_k=1),
    ),
    "sentiment": Kind(
        CLASSIFIER,
        LABELS,
        lambda it: of_labels(it.classify(SENTENCES)),
        piped(LABELS, SENTENCES, "{label}"),
        ("negative", "positive"),
    ),
    "cross-encoder": Kind(
        CLASSIFIER,
        LABELS,
        lambda it: of_labels(it.classify([PAIR])),
        piped(LABELS, {"text": PAIR[0], "text_pair": PAIR[1]}, "{label}"),
        ("LABEL_0",),
        {"config.json": {"sentence_transformers": {"version": "5.0.0"}}},
    ),
    VECTORS: Kind(
        "BertModel",
        "feature-extraction",
        lambda it: [("", it.embed([SENTENCES[4]]))],
        first_token,
        files=sentence_files(
            {"pooling_mode_cls_token": True},
            **{
                "config_sentence_transformers.json": {"prompts": {"query": PROMPT}, "default_prompt_name": "query"},
                "sentence_bert_config.json": {"max_seq_length": 64},
            },
        ),
    ),
}


def publish(kind: Kind, folder: Path) -> PreTrainedModel:
    """Write a BERT with one layer as `kind` is published; that of vectors in shards and with vocab.txt alone."""
    config = small_bert(kind.labels)
    config.num_hidden_layers = 1
    torch.manual_seed(3)
    stock = outspoken(getattr(transformers, kind.head)(config)).eval()
    is_in_shards = kind.task == "feature-extraction"
    stock.save_pretrained(folder, **({"max_shard_size": "20KB"} if is_in_shards else {}))
    if is_in_shards:
        vocabulary = sentence_tokenizer().get_vocab()
        (folder / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=vocabulary.__getitem__)))
        (folder / "README.md").write_text("---\nlicense: mit\n---\n\n# A model\n")
    else:
        sentence_tokenizer().save_pretrained(folder)
        change(
            folder / "tokenizer_config.json", {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
        )
    for name, facts in kind.files.items():
        change(folder / name, facts)
    return stock


def change(file: Path, facts: Any) -> None:
    """Write these facts into a JSON file, beside those that it has."""
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(json.loads(file.read_text()) | facts if file.exists() else facts))


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


Imported = Callable[[str], tuple[Path, PreTrainedModel]]


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory, operators_made_once: None) -> Imported:
    """`imported(kind)`: a project after `clozeline import model`, and the model; each is imported once.

    Times and the bill of materials, which other tests examine, are left out: they take a third of the stage.
    """
    known: dict[str, tuple[Path, PreTrainedModel]] = {}

    def import_it(name: str) -> tuple[Path, PreTrainedModel]:
        root = tmp_path_factory.mktemp("project")
        for file in ("params.yaml", "dvc.yaml"):
            shutil.copy(PROJECT / file, root)
        stock = publish(KINDS[name], root / "model")
        with pytest.MonkeyPatch.context() as patched:
            patched.chdir(root)
            patched.setattr(published, "_package", package)
            patched.setattr("clozeline.exporting.packaging.write_sbom", lambda *_: None)
            patched.setattr("clozeline.exporting.packaging.measure", lambda *_, **__: "at once")
            result = CliRunner().invoke(app, ["import", "model", "--no-release"], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return root, stock

    def imported(name: str) -> tuple[Path, PreTrainedModel]:
        return known.get(name) or known.setdefault(name, import_it(name))

    return imported


def assert_same(ours: Said, theirs: Said, atol: float) -> None:
    assert [name for name, _ in ours] == [name for name, _ in theirs]
    for (_, one), (_, other) in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, atol=atol)


@pytest.mark.parametrize("name", KINDS)
def test_its_answers_are_the_published_ones_and_int8_gives_them_too(name: str, imported: Imported) -> None:
    (root, stock), kind = imported(name), KINDS[name]
    manifest = read_manifest(root / "dist/model")
    assert (manifest.task, manifest.served) == (kind.task, "int8")
    with torch.inference_mode():
        theirs = kind.theirs(stock, AutoTokenizer.from_pretrained(root / "model"))
    ours = kind.ours(load(root / "dist/model", precision="fp32"))
    assert_same(ours, theirs, atol=read_params(PROJECT / "params.yaml").export.max_parity_difference)
    assert_same(kind.ours(load(root / "dist/model", precision="int8")), ours, atol=0.1)


def test_its_files_stay_as_published_and_the_package_says_what_they_say(imported: Imported) -> None:
    root, _ = imported(VECTORS)
    assert len(list((root / "model").glob("model-*.safetensors"))) > 1
    assert not (root / "model/tokenizer.json").exists()
    manifest, card = read_manifest(root / "dist/model"), (root / "dist/model/README.md").read_text()
    assert (manifest.max_length, manifest.prompts) == (64, {"query": PROMPT})
    assert manifest.outputs[0].meaning.startswith("last hidden state of the first token")
    assert "license: mit" in card
    assert "base_model: model" in card


def test_a_prompt_that_the_model_does_not_have_is_refused(imported: Imported) -> None:
    ours: Any = load(imported(VECTORS)[0] / "dist/model", precision="fp32")
    assert np.array_equal(ours.embed([SENTENCES[4]]), ours.embed([SENTENCES[4]], prompt_name="query"))
    with pytest.raises(ParamsError, match="no prompt passage, only query"):
        ours.embed([SENTENCES[4]], prompt_name="passage")


@pytest.mark.parametrize(
    ("changes", "kind", "told"),
    [
        ({"sha256": {"model.safetensors.index.json": "0" * 64}}, ArtifactError, "not the file that was imported"),
        ({"items": "none.jsonl"}, DataError, "0 items"),
    ],
)
def test_other_weights_than_those_imported_or_no_items_are_refused(
    imported: Imported, changes: dict[str, Any], kind: type[Exception], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, _ = imported(VECTORS)
    monkeypatch.chdir(root)
    Path("none.jsonl").touch()
    before = contents(root / "dist")
    with pytest.raises(kind, match=told):
        package(Workspace(root), "model", **changes)
    assert contents(root / "dist") == before


def said(root: Path, *command: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=root, env=environment(root), capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_a_deleted_package_comes_back_byte_for_byte(tmp_path: Path) -> None:
    root = copy_project(tmp_path / "project")
    subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)
    publish(KINDS["masks"], root / "model")
    write_params(root, {"export": {"num_agreement_texts": 8, "static_ratios": []}})
    write_items(root / items_file("mini"), [HeldOut(text=text) for text in SENTENCES])
    entry = {
        **dict.fromkeys(("revision", "default_prompt")),
        "pooling": "mean",
        **{"model": "model", "task": "fill-mask", "prompts": {}, "max_length": 32, "reads_pairs": False},
        **{"items": items_file("mini"), "sha256": Published(str(root / "model"), None).sha256()},
    }
    edit(root / "params.yaml", [("imports.mini", entry)], "test")
    said(root, "clozeline", "params", "--out", "data/params.yaml")
    said(root, reproduce.__name__, "import@mini", code=reproduce.EXIT_CODES["executed"])
    shutil.rmtree(root / "model")  # the stage could not run again
    packaged = contents(root / "dist/mini")
    assert {FILES.manifest, FILES.fp32} <= set(packaged)
    for command, code in (
        ("dvc checkout", 0),
        ("dvc repro", 0),
        (reproduce.__name__, reproduce.EXIT_CODES["restored"]),
    ):
        shutil.rmtree(root / "dist")
        name = "dist/mini" if command == "dvc checkout" else "import@mini"
        assert "Running stage 'import" not in said(root, *command.split(), name, code=code)
        assert contents(root / "dist/mini") == packaged
