"""Claim: what cannot be imported is refused before anything is converted, by one error that says why."""

import json
import re
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import ByteLevelBPETokenizer, Tokenizer
from transformers import (
    BertForPreTraining,
    RobertaConfig,
    RobertaForMaskedLM,
)

from clozeline.exporting.trained import open_trained, tokenizer_of_vocabulary
from clozeline.orchestration import importing
from clozeline.orchestration.importing import SentenceVectors, described
from clozeline.params.delivery import ImportParams
from clozeline.records.published import INDEX, POOLING, Published, published_folder
from clozeline.system.errors import ArtifactError
from tests.make.models import SENTENCES, sentence_tokenizer, small_bert

Written = Callable[..., Published]
MASKS = {"architectures": ["BertForMaskedLM"]}
CLASSES = {"architectures": ["BertForSequenceClassification"]}
NO_WEIGHTS = {"model.safetensors": None}
MEAN = {"pooling_mode_mean_tokens": True}
MODULES = [{"type": f"sentence_transformers.models.{name}"} for name in ("Transformer", "Pooling", "Normalize")]
DENSE = {"type": "sentence_transformers.models.Dense"}
QUERY = {"prompts": {"query": "query: ", "document": ""}, "default_prompt_name": "query"}
DOT = {"similarity_fn_name": "dot"}
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
        ({}, {**CLASSES, "id2label": {0: "ENTAILMENT", 1: "no"}}, {"reads_pairs": True}),
        (sentence_files(), MASKS, {"task": "feature-extraction"}),
        (sentence_files(**{LENGTH: {"max_seq_length": 16}}), {}, {"max_length": 16}),
        (sentence_files({"pooling_mode_cls_token": True}), {}, {"vectors": SentenceVectors("cls")}),
        (sentence_files({"pooling_mode": "max"}), {}, {"vectors": SentenceVectors("max")}),
        (sentence_files(**{PROMPTS: QUERY}), {}, {"vectors": SentenceVectors("mean", {"query": "query: "}, "query")}),
    ],
)
def test_a_checkpoint_is_imported_as_what_it_is_published_as(
    written: Written, files: Mapping[str, Any], config: Mapping[str, Any], facts: Mapping[str, Any]
) -> None:
    found = described(written(files, **config))
    assert {name: getattr(found, name) for name in facts} == facts


@pytest.mark.parametrize(
    ("files", "config", "told"),
    [
        ({"config.json": None}, {}, "no config.json"),
        ({"model.safetensors": "no weights"}, {}, "is no safetensors"),
        ({"tokenizer.json": None}, {}, "no tokenizer.json, and no vocabulary"),
        (NO_WEIGHTS, {}, "no model.safetensors"),
        ({**NO_WEIGHTS, INDEX: {"weight_map": {"a": "b.safetensors"}}}, {}, "b.safetensors does not exist"),
        ({**NO_WEIGHTS, "pytorch_model.bin": {}}, {}, "pytorch_model.bin"),
        ({}, {"vocab_size": 20}, "the weights 20 tokens"),
        ({}, {"auto_map": {"AutoModel": "someone.Model"}}, "auto_map"),
        ({}, {"model_type": "deberta"}, "such as microsoft/deberta-v3-base"),
        ({}, {"architectures": ["BertForTokenClassification"]}, "LABEL_0, LABEL_1"),
        ({}, {"id2label": ["bad", "good"]}, "config.json is damaged"),
        (sentence_files({**MEAN, "pooling_mode_cls_token": True}), {}, "1_Pooling"),
        (sentence_files({"pooling_mode_weightedmean_tokens": True}), {}, "pooling_mode_weightedmean_tokens"),
        (sentence_files({**MEAN, "word_embedding_dimension": 64}), {}, "vectors of 64"),
        (sentence_files({**MEAN, "include_prompt": False}, **{PROMPTS: {"prompts": {"a": "b"}}}), {}, "include_prompt"),
        (sentence_files(modules=[*MODULES, DENSE]), {}, "Dense is not exported"),
        (sentence_files(modules=MODULES[:2], **{PROMPTS: DOT}), {}, "similarity_fn_name: dot"),
        (sentence_files(**{PROMPTS: {"prompts": ["query: "]}}), {}, "prompts: ['query: ']"),
    ],
)
def test_a_checkpoint_that_cannot_be_imported_is_refused(
    written: Written, files: dict[str, Any], config: dict[str, Any], told: str
) -> None:
    with pytest.raises(ArtifactError) as refusal:
        described(written(files, **config))
    assert told in str(refusal.value)


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


def test_what_the_model_cannot_do_or_does_not_fit_into_memory_is_refused(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = written()
    for asked, told in (({"task": "token-classification"}, "--task token-cl"), ({"reads_pairs": True}, "--pairs")):
        with pytest.raises(ArtifactError, match=told):
            described(published, **asked)
    weights = Path(published.name) / "model.safetensors"
    monkeypatch.setattr(importing, "available_bytes", lambda: weights.stat().st_size)
    with pytest.raises(ArtifactError, match="import a smaller model"):
        described(published)


@pytest.mark.parametrize("name", ["SciBERT", "CodeBERT"])
def test_answers_of_a_model_with_a_vocabulary_alone_are_those_of_stock_transformers(name: str, tmp_path: Path) -> None:
    """That of SciBERT is published without its architecture, and its weights have the names of TensorFlow."""
    torch.manual_seed(0)
    folder, specials = tmp_path / "published", ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
    codebert = RobertaConfig(vocab_size=300, max_position_embeddings=66, type_vocab_size=1, **shape)
    stock = (BertForPreTraining(small_bert()) if name == "SciBERT" else RobertaForMaskedLM(codebert)).eval()
    stock.save_pretrained(folder)
    if name == "SciBERT":
        old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        weights = load_file(folder / "model.safetensors")
        renamed = {re.sub("|".join(old), lambda found: old[found[0]], key): some for key, some in weights.items()}
        save_file(renamed, folder / "model.safetensors")
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"architectures": []}))
        known = sentence_tokenizer().get_vocab()
        (folder / "vocab.txt").write_text("\n".join(sorted(known, key=known.__getitem__)))
    else:
        tokenizer = ByteLevelBPETokenizer()
        tokenizer.train_from_iterator(SENTENCES, vocab_size=290, special_tokens=specials, show_progress=False)
        tokenizer.save_model(str(folder))
    published = Published(str(folder), None)
    found = described(published, "fill-mask" if name == "SciBERT" else None)
    assert found.task == "fill-mask"
    params = ImportParams(
        model=published.name, revision=None, task=found.task, pooling=found.vectors.pooling, prompts={},
        default_prompt=None, max_length=found.max_length, reads_pairs=found.reads_pairs, items="items.jsonl",
        sha256=published.sha256(),
    )  # fmt: skip
    with published_folder(params.model, params.revision, params.sha256) as copy:
        tokenizer_of_vocabulary(str(copy)).save(str(copy / "tokenizer.json"))
        trained = open_trained(copy, params)
        inputs: Any = trained.tokenizer([SENTENCES[0]], return_tensors="pt")
    with torch.inference_mode():
        ours, theirs = trained.model(**inputs).logits, stock(**inputs)
    assert ours.shape[1] > 2
    assert torch.allclose(ours, theirs.prediction_logits if name == "SciBERT" else theirs.logits, atol=1e-5)
