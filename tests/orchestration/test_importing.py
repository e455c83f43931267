"""Claim: what cannot be imported is refused before anything is converted, by one error that says why."""

import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import ByteLevelBPETokenizer, Tokenizer
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
from clozeline.orchestration import importing
from clozeline.orchestration.importing import SentenceVectors, described
from clozeline.params.delivery import ImportParams
from clozeline.planning.advice import choices
from clozeline.records.published import INDEX, POOLING, Published, published_folder
from clozeline.system.errors import ArtifactError
from tests.make.models import SENTENCES, sentence_tokenizer, small_bert

Written = Callable[..., Published]
MASKS = {"architectures": ["BertForMaskedLM"]}
CLASSES = {"architectures": ["BertForSequenceClassification"]}
MEAN = {"pooling_mode_mean_tokens": True}
MODULES = [{"type": f"sentence_transformers.models.{name}"} for name in ("Transformer", "Pooling", "Normalize")]
DENSE = {"type": "sentence_transformers.models.Dense"}
PROMPTS, LENGTH = "config_sentence_transformers.json", "sentence_bert_config.json"


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """`written({file: JSON or None}, key=…)` writes a published model; None leaves a file out."""

    def write(files: Mapping[str, Any] | None = None, **config: Any) -> Published:
        folder = tmp_path / "someone-model"
        folder.mkdir()
        sentence_tokenizer().backend_tokenizer.save(str(folder / "tokenizer.json"))
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
        whole = small_bert().to_dict() | {"architectures": ["BertModel"], **config}
        for name, content in {"config.json": whole, **(files or {})}.items():
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            if content is None:
                path.unlink(missing_ok=True)
            else:
                path.write_text(json.dumps(content))
        return Published(str(folder), None)

    return write


def sentence_files(pooling: Mapping[str, Any] = MEAN, modules: Any = MODULES, **more: Any) -> dict[str, Any]:
    """Files of sentence-transformers with this configuration of the pooling, and `more` by their names."""
    return {"modules.json": modules, POOLING: {"word_embedding_dimension": small_bert().hidden_size, **pooling}, **more}


@pytest.mark.parametrize(
    ("files", "config", "facts"),
    [
        ({}, {}, {"task": "feature-extraction", "vectors": SentenceVectors(), "max_length": 128}),
        ({}, MASKS, {"task": "fill-mask"}),
        ({}, {**CLASSES, "id2label": {0: "bad", 1: "good"}}, {"labels": ("bad", "good"), "reads_pairs": False}),
        (
            {},
            {**CLASSES, "id2label": {0: "ENTAILMENT", 1: "no"}},
            {"labels": ("ENTAILMENT", "no"), "reads_pairs": True},
        ),
        (sentence_files(), MASKS, {"task": "feature-extraction"}),
        (sentence_files(**{LENGTH: {"max_seq_length": 16}}), {}, {"max_length": 16}),
        (sentence_files({**MEAN, "pooling_mode_cls_token": False}), {}, {"vectors": SentenceVectors("mean")}),
        (sentence_files({"pooling_mode_cls_token": True}), {}, {"vectors": SentenceVectors("cls")}),
        (sentence_files({"pooling_mode": "max"}), {}, {"vectors": SentenceVectors("max")}),
        (
            sentence_files(
                **{PROMPTS: {"prompts": {"query": "query: ", "document": ""}, "default_prompt_name": "query"}}
            ),
            {},
            {"vectors": SentenceVectors("mean", {"query": "query: "}, "query")},
        ),
    ],
)
def test_a_checkpoint_is_imported_as_what_it_is_published_as(
    written: Written, files: Mapping[str, Any], config: Mapping[str, Any], facts: Mapping[str, Any]
) -> None:
    found = described(written(files, **config))
    assert {name: getattr(found, name) for name in facts} == facts


NO_WEIGHTS = {"model.safetensors": None}


@pytest.mark.parametrize(
    ("files", "config", "told"),
    [
        ({"config.json": None}, {}, "no config.json"),
        ({"config.json": []}, {}, "a JSON object"),
        ({"model.safetensors": "no weights"}, {}, "is no safetensors"),
        ({"tokenizer.json": None}, {}, "no tokenizer.json, and no vocabulary"),
        ({"tokenizer.json": []}, {}, "tokenizer.json of"),
        (NO_WEIGHTS, {}, "no model.safetensors"),
        ({**NO_WEIGHTS, INDEX: {"weight_map": {"a": "b.safetensors"}}}, {}, "b.safetensors does not exist"),
        ({**NO_WEIGHTS, INDEX: []}, {}, "`weight_map`"),
        ({**NO_WEIGHTS, "pytorch_model.bin": {}}, {}, "pytorch_model.bin"),
        ({}, {"vocab_size": 20}, "the weights 20 tokens"),
        ({}, {"auto_map": {"AutoModel": "someone.Model"}}, "auto_map"),
        ({}, {"model_type": "deberta"}, "such as microsoft/deberta-v3-base"),
        ({}, {"model_type": "longformer"}, "torch.export cannot trace its windows"),
        ({}, {"architectures": []}, "(no architectures)"),
        ({}, {"architectures": ["BertForTokenClassification"]}, "LABEL_0, LABEL_1"),
        ({}, {"vocab_size": "many"}, "Field 'vocab_size' expected int, got str"),
        ({}, {"model_type": ["bert"]}, "model_type ['bert']"),
        ({}, {"id2label": ["bad", "good"]}, "config.json is damaged"),
        ({"tokenizer_config.json": []}, {}, "tokenizer_config.json is damaged"),
        (sentence_files({**MEAN, "pooling_mode_cls_token": True}), {}, "1_Pooling"),
        (sentence_files({"pooling_mode_mean_tokens": False}), {}, "no pooling"),
        (sentence_files({"pooling_mode_weightedmean_tokens": True}), {}, "pooling_mode_weightedmean_tokens"),
        (sentence_files({**MEAN, "word_embedding_dimension": 64}), {}, "vectors of 64"),
        (sentence_files({**MEAN, "include_prompt": False}, **{PROMPTS: {"prompts": {"a": "b"}}}), {}, "include_prompt"),
        (sentence_files(modules=[*MODULES, DENSE]), {}, "Dense is not exported"),
        (
            sentence_files(modules=MODULES[:2], **{PROMPTS: {"similarity_fn_name": "dot"}}),
            {},
            "similarity_fn_name: dot",
        ),
        (sentence_files(modules=["Transformer"]), {}, "'Transformer'"),
        (sentence_files(**{LENGTH: {"max_seq_length": "16"}}), {}, "max_seq_length: '16'"),
        (sentence_files(**{PROMPTS: {"prompts": ["query: "]}}), {}, "prompts: ['query: ']"),
    ],
)
def test_a_checkpoint_that_cannot_be_imported_is_refused(
    written: Written, files: dict[str, Any], config: dict[str, Any], told: str
) -> None:
    with pytest.raises(ArtifactError) as refusal:
        described(written(files, **config))
    assert told in str(refusal.value)


@pytest.mark.parametrize(
    ("asked", "told"),
    [({"task": "token-classification"}, "--task token-classification"), ({"reads_pairs": True}, "--pairs")],
)
def test_what_the_model_cannot_do_is_refused(written: Written, asked: dict[str, Any], told: str) -> None:
    with pytest.raises(ArtifactError, match=told):
        described(written(), **asked)


def test_weights_in_shards_are_read_with_their_list(written: Written) -> None:
    shards = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    published = written({INDEX: {"weight_map": dict(zip("ab", shards, strict=True))}, **NO_WEIGHTS})
    for shard in shards:
        save_file({}, Path(published.name) / shard)
    assert described(published).task == "feature-extraction"
    assert {INDEX, *shards} <= set(published.sha256())


def test_a_tokenizer_is_made_of_a_vocabulary_that_says_whether_texts_are_lowercased(written: Written) -> None:
    """Many early models are published with vocab.txt alone."""
    published = written(vocab_size=250)
    file = Path(published.name) / "tokenizer.json"
    known = Tokenizer.from_file(str(file)).get_vocab()
    words = sorted(known, key=known.__getitem__)
    file.unlink()
    file.with_name("vocab.txt").write_text("\n".join(words))
    assert described(published).family == "bert"
    assert "vocab.txt" in published.sha256()
    file.with_name("vocab.txt").write_text("\n".join([*words, *(f"Word{letter}" for letter in "abcdefghi")]))
    with pytest.raises(ArtifactError, match="do_lower_case"):
        described(published)
    file.with_name("tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert described(published).family == "bert"


def test_a_model_that_does_not_fit_into_memory_is_refused(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    published = written()
    weights = Path(published.name) / "model.safetensors"
    monkeypatch.setattr(importing, "available_bytes", lambda: weights.stat().st_size)
    with pytest.raises(ArtifactError, match="import a smaller model"):
        described(published)


class Kind(NamedTuple):
    """How a model is published, and as what it is imported."""

    build: Callable[[], PreTrainedModel]
    task: str
    asked: str | None = None
    architectures: tuple[str, ...] | None = None
    has_old_names: bool = False  # whether the weights have the names of TensorFlow: gamma and beta


def _bert(kind: type[PreTrainedModel], *labels: str) -> Callable[[], PreTrainedModel]:
    return lambda: kind(small_bert(labels))


def _codebert(kind: type[PreTrainedModel]) -> Callable[[], PreTrainedModel]:
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
    return lambda: kind(RobertaConfig(vocab_size=300, max_position_embeddings=66, type_vocab_size=1, **shape))


KINDS = {
    "SciBERT": Kind(_bert(BertForPreTraining), "fill-mask", "fill-mask", (), has_old_names=True),
    "SciBERT, encoder": Kind(_bert(BertForPreTraining), "feature-extraction", "feature-extraction", ()),
    "BioBERT": Kind(_bert(BertForMaskedLM), "fill-mask", None, ("BertForMaskedLM",), has_old_names=True),
    "PubMedBERT": Kind(_bert(BertForMaskedLM), "fill-mask"),
    "LEGAL-BERT": Kind(_bert(BertForPreTraining), "fill-mask"),
    "FinBERT": Kind(_bert(BertForSequenceClassification, "positive", "negative", "neutral"), "text-classification"),
    "CodeBERT": Kind(_codebert(RobertaModel), "feature-extraction"),
    "CodeBERT, masks": Kind(_codebert(RobertaForMaskedLM), "fill-mask"),
}


def publish(kind: Kind, stock: PreTrainedModel, folder: Path) -> Published:
    """Write the model as published: without metadata in its weights, and a vocabulary alone."""
    stock.save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    if kind.has_old_names:
        old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        for name in [name for name in weights if name.endswith(tuple(old))]:
            ours = next(end for end in old if name.endswith(end))
            weights[name.removesuffix(ours) + old[ours]] = weights.pop(name)
    save_file(weights, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    if kind.architectures is not None:
        config["architectures"] = list(kind.architectures)
    (folder / "config.json").write_text(json.dumps(config))
    if config["model_type"] == "bert":
        known = sentence_tokenizer().get_vocab()
        (folder / "vocab.txt").write_text("\n".join(sorted(known, key=known.__getitem__)))
    else:
        tokenizer = ByteLevelBPETokenizer()
        specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        tokenizer.train_from_iterator(SENTENCES, vocab_size=290, special_tokens=specials, show_progress=False)
        tokenizer.save_model(str(folder))
    return Published(str(folder), None)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_its_answers_are_those_of_stock_transformers(kind: Kind, tmp_path: Path) -> None:
    torch.manual_seed(0)
    stock = kind.build().eval()
    published = publish(kind, stock, tmp_path / "published")
    found = described(published, kind.asked)
    assert found.task == kind.task
    params = ImportParams(
        model=published.name, revision=None, task=found.task, pooling=found.vectors.pooling, prompts={},
        default_prompt=None, max_length=found.max_length, reads_pairs=found.reads_pairs, items="items.jsonl",
        sha256=published.sha256(),
    )  # fmt: skip
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
    told = " ".join(choice.why for choice in choices().values())
    assert [name for name in KINDS if name.partition(",")[0] not in told] == []
