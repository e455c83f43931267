"""Claim: encoders of a domain, as they are published, are imported with the weights that stock transformers reads."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import ByteLevelBPETokenizer
from transformers import (
    BertForMaskedLM,
    BertForPreTraining,
    BertForSequenceClassification,
    PreTrainedModel,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaModel,
)

from clozeline.exporting.trained import open_trained, tokenizer_of_vocabulary
from clozeline.orchestration.importing import Described, described
from clozeline.params.delivery import ImportParams
from clozeline.planning.chooser import CHOICES
from clozeline.records.published import Published, published_folder
from tests.make.models import SENTENCES, sentence_tokenizer, small_bert


@dataclass(frozen=True)
class Kind:
    """How a model is published, and as what it is imported."""

    build: Callable[[], PreTrainedModel]
    task: str
    asked: str | None = None
    architectures: tuple[str, ...] | None = None
    has_old_names: bool = False
    """Whether the weights have the names of TensorFlow: gamma and beta."""


def _finbert() -> PreTrainedModel:
    config = small_bert()
    config.id2label = {0: "positive", 1: "negative", 2: "neutral"}
    config.label2id = {label: place for place, label in config.id2label.items()}
    return BertForSequenceClassification(config)


def _codebert(build: Callable[[RobertaConfig], PreTrainedModel]) -> Callable[[], PreTrainedModel]:
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
    return lambda: build(RobertaConfig(vocab_size=300, max_position_embeddings=66, type_vocab_size=1, **shape))


KINDS = {
    "SciBERT": Kind(lambda: BertForPreTraining(small_bert()), "fill-mask", "fill-mask", (), has_old_names=True),
    "SciBERT, encoder": Kind(lambda: BertForPreTraining(small_bert()), "feature-extraction", "feature-extraction", ()),
    "BioBERT": Kind(lambda: BertForMaskedLM(small_bert()), "fill-mask", None, ("BertForMaskedLM",), has_old_names=True),
    "PubMedBERT": Kind(lambda: BertForMaskedLM(small_bert()), "fill-mask"),
    "LEGAL-BERT": Kind(lambda: BertForPreTraining(small_bert()), "fill-mask"),
    "FinBERT": Kind(_finbert, "text-classification"),
    "CodeBERT": Kind(_codebert(RobertaModel), "feature-extraction"),
    "CodeBERT, masks": Kind(_codebert(RobertaForMaskedLM), "fill-mask"),
}


def write_vocabulary(folder: Path, model_type: str) -> None:
    """Write the files of the vocabulary, without tokenizer.json and without settings."""
    if model_type == "bert":
        known = sentence_tokenizer().get_vocab()
        (folder / "vocab.txt").write_text("\n".join(sorted(known, key=known.__getitem__)))
        return
    tokenizer = ByteLevelBPETokenizer()
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer.train_from_iterator(SENTENCES, vocab_size=290, special_tokens=specials, show_progress=False)
    tokenizer.save_model(str(folder))


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture
def stock(kind: Kind) -> PreTrainedModel:
    torch.manual_seed(0)
    return kind.build().eval()


@pytest.fixture
def folder(kind: Kind, stock: PreTrainedModel, tmp_path: Path) -> Path:
    """The model as published: without metadata in its weights, and a vocabulary alone."""
    folder = tmp_path / "published"
    stock.save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    if kind.has_old_names:
        old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        weights = {_renamed(name, old): weight for name, weight in weights.items()}
    save_file(weights, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    if kind.architectures is not None:
        config["architectures"] = list(kind.architectures)
    (folder / "config.json").write_text(json.dumps(config))
    write_vocabulary(folder, config["model_type"])
    return folder


def _renamed(name: str, endings: dict[str, str]) -> str:
    return next((name.removesuffix(end) + new for end, new in endings.items() if name.endswith(end)), name)


def entry(published: Published, found: Described) -> ImportParams:
    return ImportParams(
        model=published.name, revision=None, task=found.task, pooling=found.vectors.pooling, prompts={},
        default_prompt=None, max_length=found.max_length, reads_pairs=found.reads_pairs, items="items.jsonl",
        sha256=published.sha256(),
    )  # fmt: skip


def test_its_answers_are_those_of_stock_transformers(kind: Kind, stock: PreTrainedModel, folder: Path) -> None:
    published = Published(str(folder), None)
    found = described(published, kind.asked)
    assert found.task == kind.task
    params = entry(published, found)
    with published_folder(params.model, params.revision, params.sha256) as copy:
        tokenizer_of_vocabulary(str(copy)).save(str(copy / "tokenizer.json"))
        trained = open_trained(copy, params)
        inputs: Any = trained.tokenizer([SENTENCES[0]], return_tensors="pt")
    theirs: Any
    with torch.inference_mode():
        if kind.task == "feature-extraction":
            ours = trained.model.base_model(**inputs).last_hidden_state
            theirs = stock.base_model(**inputs).last_hidden_state
        else:
            ours, theirs = trained.model(**inputs).logits, stock(**inputs)
            theirs = theirs.prediction_logits if isinstance(stock, BertForPreTraining) else theirs.logits
    assert ours.shape[1] > 2
    assert torch.allclose(ours, theirs, atol=1e-5)


def test_the_chooser_has_a_row_of_each() -> None:
    told = " ".join(choice.why for choice in CHOICES.values())
    assert [name for name in KINDS if name.partition(",")[0] not in told] == []
