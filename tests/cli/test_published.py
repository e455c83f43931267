"""Claim: `clozeline import` writes what it found into params.yaml, and takes it back if packaging fails."""

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from huggingface_hub.errors import EntryNotFoundError
from huggingface_hub.hf_api import RepoFile
from transformers import BertForMaskedLM, BertModel
from typer.testing import CliRunner, Result

from clozeline.cli import app, published
from clozeline.orchestration.importing import Described, SentenceVectors
from clozeline.orchestration.release import Release, ReleaseRefusedError
from clozeline.params.reading import read_params
from clozeline.records.finetune.scored_items import HeldOut
from clozeline.records.snapshot import FORGOTTEN_LOCK, with_tombstone, write
from clozeline.system.errors import ArtifactError, GateError, ParamsError, TransientError
from tests.make import packages
from tests.make.models import NAME, OLD, sentence_tokenizer, small_bert
from tests.make.tasks import contents

RELEASE = published._release
NLI = ("contradiction", "entailment", "neutral")
VECTORS = SentenceVectors(pooling="cls", prompts={"query": "query: "})
FOUND = Described("feature-extraction", "bert", VECTORS, max_length=16, labels=(), reads_pairs=False)


@pytest.fixture
def found(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project beside a folder `My.Model`, whose checkpoint is `FOUND`."""
    (project / "My.Model").mkdir()
    (project / "My.Model/config.json").write_text("{}")
    monkeypatch.setattr("clozeline.orchestration.importing.described", lambda *_, **__: FOUND)
    monkeypatch.setattr(published, "_check_opens", lambda entry: None)
    return project


def run(*options: str) -> Result:
    return CliRunner().invoke(app, ["import", "My.Model", *options], catch_exceptions=False)


@pytest.fixture
def packaged(found: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names that would be packaged."""
    names: list[str] = []
    monkeypatch.setattr(published, "_package", lambda workspace, called: names.append(called))
    monkeypatch.setattr(published, "_release", lambda workspace, called, before: None)
    return names


def test_an_import_is_written_into_params_with_its_hashes_and_items(project: Path, packaged: list[str]) -> None:
    result = run()
    entry = read_params(project / "params.yaml").imports["my-model"]
    assert packaged == ["my-model"]
    assert (entry.model, entry.revision, entry.pooling, entry.max_length) == ("My.Model", None, "cls", 16)
    assert set(entry.sha256) == {"config.json"}
    assert len(HeldOut.lines(project / entry.items)) > 200
    assert "clozeline serve dist/my-model" in result.output


def test_a_name_on_the_hub_is_written_with_its_commit_and_the_hashes_of_that_commit(
    project: Path, packaged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"config.json": b"{}", "model.safetensors": b"weights"}
    for name, content in files.items():
        (project / "My.Model" / name).write_bytes(content)

    def download(name: str, file: str, revision: str) -> str:
        if file not in files or (name, revision) != (NAME, OLD):
            raise EntryNotFoundError.__new__(EntryNotFoundError)
        return str(project / "My.Model" / file)

    weights = RepoFile(path="model.safetensors", size=7, oid="0")
    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: SimpleNamespace(sha=OLD))
    monkeypatch.setattr("huggingface_hub.HfApi.get_paths_info", lambda *_, **__: [weights])
    CliRunner().invoke(app, ["import", NAME], catch_exceptions=False)
    entry = read_params(project / "params.yaml").imports["model"]
    assert (entry.model, entry.revision, packaged) == (NAME, OLD, ["model"])
    assert entry.sha256 == {name: sha256(content).hexdigest() for name, content in files.items()}


@pytest.mark.parametrize(
    ("task", "labels", "write"),
    [
        ("fill-mask", (), packages.write_encoder_of_another_mask),
        ("text-generation", (), packages.write_completer),
        ("text-classification", ("bad", "good"), packages.write_classifier),
        ("text-classification", NLI, partial(packages.write_entailer, labels=NLI)),
        ("token-classification", ("O", "B-PER"), packages.write_tagger),
        ("question-answering", (), packages.write_answerer),
        ("feature-extraction", (), packages.write_embedder),
    ],
)
def test_the_next_command_asks_the_package(
    found: Path, monkeypatch: pytest.MonkeyPatch, task: str, labels: tuple[str, ...], write: Callable[[Path], None]
) -> None:
    described = replace(FOUND, task=task, labels=labels, reads_pairs=labels == NLI)
    monkeypatch.setattr("clozeline.orchestration.importing.described", lambda *_, **__: described)
    monkeypatch.setattr(published, "_package", lambda workspace, called: write(found / "dist" / called))
    (next_command,) = re.findall("Next: `clozeline ([^`]+)`", run("--no-release").output)
    answered = CliRunner().invoke(app, shlex.split(next_command))
    assert (answered.exception, bool(answered.stdout.strip())) == (None, True)


def test_a_forgotten_text_does_not_come_back_as_an_item(project: Path, packaged: list[str]) -> None:
    letter = "Dear Miss Quuxbert, please send the forty brown parcels to Elm Street."
    write(project / FORGOTTEN_LOCK, with_tombstone(project / FORGOTTEN_LOCK, letter))
    (project / "notes.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in ("Hello.", letter)))
    run("--text", "notes.jsonl")
    assert [item.text for item in HeldOut.lines(project / "imports/my-model.jsonl")] == ["Hello."]


@pytest.mark.parametrize("fault", [GateError("it differs", given="1", expected="0", do="nothing"), KeyboardInterrupt()])
def test_the_project_is_as_before_if_the_model_is_not_packaged(
    found: Path, monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    monkeypatch.setattr(published, "_package", Mock(side_effect=fault))
    (found / "imports").mkdir()
    (found / "imports/again.jsonl").write_text("those of an earlier import")
    before = (found / "params.yaml").read_bytes()
    for name in ("my-model", "again"):
        assert CliRunner().invoke(app, ["import", "My.Model", "--name", name]).exit_code != 0
    assert (found / "params.yaml").read_bytes() == before
    assert contents(found / "imports") == {"again.jsonl": b"those of an earlier import"}


@pytest.mark.parametrize(
    ("head", "without", "told"),
    [
        ("BertForSequenceClassification", None, "2 missing, such as classifier.bias"),
        ("BertForMaskedLM", "mask_token", "a tokenizer without a mask token"),
        ("BertForMaskedLM", "pad_token", "a tokenizer without a padding token"),
    ],
)
def test_a_model_without_its_head_or_a_token_that_it_needs_is_refused_before_anything_is_written(
    project: Path, monkeypatch: pytest.MonkeyPatch, head: str, without: str | None, told: str
) -> None:
    monkeypatch.setattr(published, "_package", lambda *_: pytest.fail("a stage was started"))
    tokenizer = sentence_tokenizer()
    if without:
        setattr(tokenizer, without, None)
    tokenizer.save_pretrained("model")
    stock = BertForMaskedLM if head == "BertForMaskedLM" else partial(BertModel, add_pooling_layer=True)
    stock(small_bert()).save_pretrained("model")
    config = json.loads(Path("model/config.json").read_text())
    labels = {"id2label": {"0": "bad", "1": "good"}, "label2id": {"bad": 0, "good": 1}}
    Path("model/config.json").write_text(json.dumps(config | labels | {"architectures": [head]}))
    before = (project / "params.yaml").read_bytes()
    with pytest.raises(ArtifactError, match=told):
        CliRunner().invoke(app, ["import", "model"], catch_exceptions=False)
    assert (project / "params.yaml").read_bytes() == before


def released(outcome: str) -> Release:
    made = {"outcome": outcome, "model": "clozeline-my-model", "version": "2"}
    return Release.model_construct(package="my-model", latency=None, **made)


@pytest.fixture
def again(project: Path, packaged: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A project whose import of `My.Model` is released; the outcomes of which figures were shown since."""
    run()
    shown: list[str] = []
    monkeypatch.setattr(published, "_release", RELEASE)
    show = "clozeline.cli.summary.show_releases"
    monkeypatch.setattr(show, lambda _, releases: shown.extend(made.outcome for made in releases))
    (project / "My.Model/config.json").write_text('{"another": "commit"}')
    return shown


def test_a_refused_import_shows_its_figures_and_the_earlier_one_comes_back(
    project: Path, packaged: list[str], again: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = (project / "params.yaml", project / "imports/my-model.jsonl")
    before = [file.read_bytes() for file in files]
    refused = Mock(side_effect=ReleaseRefusedError.of([released("refused")]))
    monkeypatch.setattr("clozeline.flows.release.release", refused)
    (project / "notes.txt").write_text("A text of one's own.\n")
    result = CliRunner().invoke(app, ["import", "My.Model", "--text", "notes.txt"])
    assert isinstance(result.exception, ReleaseRefusedError)
    assert "those of the earlier import again" in result.output
    assert ([file.read_bytes() for file in files], again) == (before, ["refused"])
    assert packaged == ["my-model"] * 3, "the first, the refused one, and the first again"


def test_a_held_import_stays_in_params_and_says_so(
    project: Path, packaged: list[str], again: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does one whose release fails."""
    before = (project / "params.yaml").read_bytes()
    monkeypatch.setattr("clozeline.flows.release.release", lambda *_, **__: [released("held")])
    assert "to go back, import the earlier model again" in run().output
    assert ((project / "params.yaml").read_bytes() == before, again) == (False, ["held"])
    held = (project / "params.yaml").read_bytes()
    fault = TransientError("MLflow does not answer", do="start it")
    monkeypatch.setattr(published, "_release", Mock(side_effect=fault))
    with pytest.raises(TransientError):
        run()
    assert (project / "params.yaml").read_bytes() == held


def test_options_that_do_not_fit_are_refused(project: Path, packaged: list[str]) -> None:
    for options, told in (
        (["--field", "label"], "write it as `--field label=stars`"),
        (["--text", "a.txt", "--labelled", "b.csv"], "leave one out"),
        (["--name", "encoder"], "encoder is taken"),
    ):
        with pytest.raises(ParamsError, match=told):
            run(*options)
    assert packaged == []
