"""Claim: a published model of every kind is imported by one command, and its package gives the published answers."""

import json
import re
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoTokenizer,
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertLMHeadModel,
    BertModel,
    PreTrainedModel,
    pipeline,
)
from typer.testing import CliRunner

from clozeline.cli import app, published
from clozeline.inference.completer import Decoding
from clozeline.inference.fields import AnswerSearch
from clozeline.inference.package import load
from clozeline.params.reading import read_params
from clozeline.records.package import read_manifest
from clozeline.serving.zero_shot import TEMPLATE, choosing
from clozeline.system.workspace import Workspace
from tests.make.models import PROJECT, RANDOM, SENTENCES, outspoken, sentence_tokenizer, small_bert
from tests.orchestration.test_importing import sentence_files

stage = import_module("clozeline.stages.import")  # `import` is a word of Python
MASKED = ["the encoder [MASK] a sentence", "a tokenizer cuts [MASK] into pieces"]
PAIR = (SENTENCES[0], SENTENCES[1])
TOPICS = ["tokenizer", "hash", "models"]
PROMPTS = MappingProxyType({"query": "the word: ", "passage": "the text: "})
Said = Sequence[tuple[str, Any]]
"""Answers of a model: what it names, and with which numbers."""


@dataclass(frozen=True)
class Kind:
    """How a model is published, and what it answers."""

    build: Callable[[], PreTrainedModel]
    task: str
    ours: Callable[[Any], Said]
    theirs: Callable[[Any, Any], Said]
    """From the model and its tokenizer, as transformers opens them."""
    files: Mapping[str, Any] = field(default_factory=dict)


def small() -> Any:
    """Configuration of a BERT with one layer."""
    config = small_bert()
    config.num_hidden_layers = 1
    return config


def causal() -> PreTrainedModel:
    config = small()
    config.is_decoder = True
    return BertLMHeadModel(config)


def named(head: Callable[..., PreTrainedModel], *labels: str) -> Callable[[], PreTrainedModel]:
    """A small BERT with a head for these labels."""

    def build() -> PreTrainedModel:
        config = small()
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: place for place, label in enumerate(labels)}
        return head(config)

    return build


def best_span(model: Any, tokenizer: Any) -> Said:
    read = tokenizer(*PAIR, return_tensors="pt", return_offsets_mapping=True)
    offsets = read.pop("offset_mapping")[0].tolist()
    found = model(**read)
    of_context = [place for place, number in enumerate(read.sequence_ids(0)) if number == 1]
    spans = [(first, last) for first in of_context for last in of_context if first <= last < first + 15]
    first, last = max(spans, key=lambda span: found.start_logits[0, span[0]] + found.end_logits[0, span[1]])
    return [(PAIR[1][offsets[first][0] : offsets[last][1]], 0)]


def likeliest_tokens(model: Any, tokenizer: Any) -> Said:
    said: list[tuple[str, Any]] = []
    for text in SENTENCES[:2]:
        read_1L = tokenizer(text, return_tensors="pt").input_ids[:, :-1]  # [SEP] would end the text
        so_far_1L = read_1L
        for _ in range(4):
            so_far_1L = torch.cat((so_far_1L, model(so_far_1L).logits[:, -1:].argmax(dim=-1)), dim=1)
        said.append((str(tuple(so_far_1L[0, read_1L.shape[1] :].tolist())), 0))
    return said


def mean_of_tokens(model: Any, tokenizer: Any) -> Said:
    read = tokenizer([PROMPTS["query"] + SENTENCES[4]], return_tensors="pt")
    mean_1H = model(**read).last_hidden_state.mean(dim=1)
    return [("", torch.nn.functional.normalize(mean_1H, dim=-1).numpy())]


def piped(task: str, given: Any, name: str, **options: Any) -> Callable[[Any, Any], Said]:
    """Answers of transformers' own pipeline, called by these fields of theirs."""

    def answer(model: Any, tokenizer: Any) -> Said:
        found = pipeline(task, model=model, tokenizer=tokenizer, device="cpu")(given, **options)
        flat = found if isinstance(found, list) else [found]
        flat = [one for each in flat for one in (each if isinstance(each, list) else [each])]
        return [(name.format(**one), one["score"]) for one in flat]

    return answer


def ranked(model: Any, tokenizer: Any) -> Said:
    found = pipeline("zero-shot-classification", model=model, tokenizer=tokenizer, device="cpu")(
        SENTENCES[1], TOPICS, hypothesis_template=TEMPLATE
    )
    return list(zip(found["labels"], found["scores"], strict=True))


def of_labels(found: Sequence[Sequence[Any]]) -> Said:
    return [(one.label, one.score) for each in found for one in each]


KINDS = {
    "masks": Kind(
        lambda: BertForMaskedLM(small()),
        "fill-mask",
        lambda it: [(str(one.token), one.score) for text in it.fill(MASKED, top_k=1) for mask in text for one in mask],
        piped("fill-mask", MASKED, "{token}", top_k=1),
    ),
    "causal": Kind(
        causal,
        "text-generation",
        lambda it: [(str(one.tokens), 0) for one in it.complete(SENTENCES[:2], Decoding(max_tokens=4))],
        likeliest_tokens,
    ),
    "NER": Kind(
        named(BertForTokenClassification, "O", "B-PER", "I-PER", "B-LOC", "I-LOC"),
        "token-classification",
        lambda it: [
            (f"{one.entity_group} {one.start}-{one.end}", one.score) for text in it.tag([SENTENCES[0]]) for one in text
        ],
        piped("token-classification", SENTENCES[0], "{entity_group} {start}-{end}", aggregation_strategy="simple"),
    ),
    "question answering": Kind(
        lambda: BertForQuestionAnswering(small()),
        "question-answering",
        lambda it: [(one.answer, 0) for (one,) in it.ask([PAIR], search=AnswerSearch(align_to_words=False))],
        best_span,
    ),
    "sentiment": Kind(
        named(BertForSequenceClassification, "negative", "positive"),
        "text-classification",
        lambda it: of_labels(it.classify(SENTENCES)),
        piped("text-classification", SENTENCES, "{label}"),
    ),
    "entailment": Kind(
        named(BertForSequenceClassification, "contradiction", "entailment", "neutral"),
        "text-classification",
        lambda it: of_labels([it.converse(choosing(it, SENTENCES[1], TOPICS))]),
        ranked,
    ),
    "cross-encoder": Kind(
        named(BertForSequenceClassification, "LABEL_0"),
        "text-classification",
        lambda it: of_labels(it.classify([PAIR])),
        piped("text-classification", {"text": PAIR[0], "text_pair": PAIR[1]}, "{label}"),
        {"config.json": {"sentence_transformers": {"version": "5.0.0"}}},
    ),
    "sentence vectors": Kind(
        lambda: BertModel(small(), add_pooling_layer=False),
        "feature-extraction",
        lambda it: [("", it.embed([SENTENCES[4]]))],
        mean_of_tokens,
        sentence_files(
            {"pooling_mode_mean_tokens": True},
            **{"config_sentence_transformers.json": {"prompts": dict(PROMPTS), "default_prompt_name": "query"}},
        ),
    ),
}


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture(scope="module")
def stock(kind: Kind) -> PreTrainedModel:
    torch.manual_seed(3)
    return outspoken(kind.build()).eval()


@pytest.fixture(scope="module")
def project(kind: Kind, stock: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with the published model in the folder `model`."""
    root = tmp_path_factory.mktemp("project")
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(PROJECT / name, root)
    sentence_tokenizer().save_pretrained(root / "model")
    stock.save_pretrained(root / "model")
    reads_types = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
    for name, facts in {"tokenizer_config.json": reads_types, **kind.files}.items():
        change(root / "model" / name, facts)
    return root


def change(file: Path, facts: Any) -> None:
    """Write these facts into a JSON file, beside those that it has."""
    file.parent.mkdir(exist_ok=True)
    known = json.loads(file.read_text()) if file.exists() else None
    file.write_text(json.dumps(known | facts if known else facts))


@pytest.fixture(scope="module")
def told(project: Path, operators_made_once: None) -> str:
    """Output of `clozeline import model`, whose stage runs in this process, with gates for random weights.

    Times and the bill of materials, which other tests examine, are left out: they take a third of the stage.
    """

    def package(workspace: Workspace, called: str) -> None:
        params = read_params(workspace.root / "params.yaml")
        few = {"num_agreement_texts": 32, "static_ratios": (), "ladder": params.export.ladder[:1]}
        entry, root = params.imports[called], workspace.root
        out, metrics = root / "dist" / called, root / "metrics.json"
        with RANDOM.applied() as gates:
            export = params.export.model_copy(update={"gates": gates, **few})
            stage.run(entry, export, items=root / entry.items, lock=root / "dvc.yaml", out=out, metrics=metrics)

    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(project)
        patched.setattr(published, "_package", package)
        patched.setattr("clozeline.exporting.packaging.write_sbom", lambda *_: None)
        patched.setattr("clozeline.exporting.packaging.measure", lambda *_, **__: "at once")
        result = CliRunner().invoke(app, ["import", "model", "--no-release"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def assert_same(ours: Said, theirs: Said, atol: float) -> None:
    assert [name for name, _ in ours] == [name for name, _ in theirs]
    for (_, one), (_, other) in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, atol=atol)


def test_its_answers_are_the_published_ones_and_int8_gives_them_too(
    kind: Kind, stock: PreTrainedModel, project: Path, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = project / "dist" / "model"
    manifest = read_manifest(package)
    assert (manifest.task, manifest.served) == (kind.task, "int8")
    with torch.inference_mode():
        theirs = kind.theirs(stock, AutoTokenizer.from_pretrained(project / "model"))
    ours = kind.ours(load(package, precision="fp32"))
    assert_same(ours, theirs, atol=read_params(PROJECT / "params.yaml").export.max_parity_difference)
    assert_same(kind.ours(load(package, precision="int8")), ours, atol=0.1)
    (next_command,) = re.findall("Next: `clozeline ([^`]+)`", told)
    monkeypatch.chdir(project)
    answered = CliRunner().invoke(app, shlex.split(next_command))
    assert (answered.exception, bool(answered.stdout.strip())) == (None, True)
