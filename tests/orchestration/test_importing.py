"""Claim: what cannot be imported is refused before anything is converted, by one error that says why."""

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from clozeline.orchestration.importing import Described, SentenceVectors, described, sentence_vectors
from clozeline.params.delivery import ImportParams
from clozeline.planning.advice import choices
from clozeline.records.published import INDEX, Published, published_folder
from clozeline.system.errors import ArtifactError
from tests.make.models import SENTENCES, sentence_tokenizer, small_bert, word_pieces

BERT = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "vocab_size": 200,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
}
Written = Callable[..., Published]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """`written({file: JSON or None}, key=…)` writes a published model; None leaves a file out."""

    def write(files: dict[str, Any] | None = None, **config: Any) -> Published:
        from tokenizers import BertWordPieceTokenizer

        folder = tmp_path / "someone-model"
        folder.mkdir()
        BertWordPieceTokenizer(vocab=word_pieces(SENTENCES, vocab_size=200)).save(str(folder / "tokenizer.json"))
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
        for name, content in {"config.json": {**BERT, **config}, **(files or {})}.items():
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            if content is None:
                path.unlink(missing_ok=True)
            else:
                path.write_text(json.dumps(content))
        return Published(str(folder), None)

    return write


def sentence_files(pooling: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Files of sentence-transformers with this configuration of the pooling."""
    return {
        "modules.json": [
            {"type": "sentence_transformers.models.Transformer"},
            {"type": "sentence_transformers.models.Pooling"},
            {"type": "sentence_transformers.models.Normalize"},
        ],
        "1_Pooling/config.json": {"word_embedding_dimension": 32, **pooling},
        **more,
    }


MEAN = sentence_files({"pooling_mode_mean_tokens": True}, **{"sentence_bert_config.json": {"max_seq_length": 16}})
NAMES = {"id2label": {"0": "bad", "1": "good"}}


@pytest.mark.parametrize(
    ("files", "config", "task", "kind"),
    [
        (MEAN, {}, None, "feature-extraction"),
        (MEAN, {"architectures": ["BertForMaskedLM"]}, None, "feature-extraction"),
        ({}, {"architectures": ["BertForMaskedLM"]}, None, "fill-mask"),
        ({}, {"architectures": ["BertForMaskedLM"]}, "feature-extraction", "feature-extraction"),
        ({}, {"architectures": ["BertForSequenceClassification"], **NAMES}, None, "text-classification"),
    ],
)
def test_a_checkpoint_is_imported_as_what_it_is_published_as(
    written: Written, files: Mapping[str, Any], config: Mapping[str, Any], task: str | None, kind: str
) -> None:
    assert described(written(dict(files), **config), task).task == kind


def test_a_sentence_encoder_reads_no_longer_texts_than_it_was_trained_with(written: Written) -> None:
    assert described(written(dict(MEAN))).max_length == 16


@pytest.mark.parametrize(("labels", "reads_pairs"), [(("ENTAILMENT", "neutral"), True), (("bad", "good"), False)])
def test_a_classifier_of_entailment_reads_pairs(written: Written, labels: tuple[str, ...], reads_pairs: bool) -> None:
    names = {str(place): label for place, label in enumerate(labels)}
    found = described(written(architectures=["BertForSequenceClassification"], id2label=names))
    assert (found.labels, found.reads_pairs) == (labels, reads_pairs)


@pytest.mark.parametrize(
    ("files", "config", "task", "told"),
    [
        ({"config.json": None}, {}, None, "no config.json"),
        ({"config.json": []}, {}, None, "a JSON object"),
        ({"model.safetensors": "no weights"}, {}, None, "is no safetensors"),
        ({"tokenizer.json": None}, {}, None, "no tokenizer.json, and no vocabulary"),
        ({"model.safetensors": None}, {}, None, "no model.safetensors"),
        (
            {"model.safetensors": None, INDEX: {"weight_map": {"a": "b.safetensors"}}},
            {},
            None,
            "b.safetensors does not exist",
        ),
        ({"model.safetensors": None, INDEX: []}, {}, None, "`weight_map`"),
        ({"model.safetensors": None, INDEX: {"weight_map": {"a": "b.bin"}}}, {}, None, "b.bin"),
        ({"model.safetensors": None, "pytorch_model.bin": {}}, {}, None, "pytorch_model.bin"),
        ({}, {"vocab_size": 20}, None, "the weights 20 tokens"),
        ({}, {"auto_map": {"AutoModel": "someone.Model"}}, None, "auto_map"),
        ({}, {"model_type": "deberta"}, None, "such as microsoft/deberta-v3-base"),
        ({}, {"model_type": "xlm-roberta-xl"}, None, "such as FacebookAI/xlm-roberta-large"),
        ({}, {"model_type": "longformer"}, None, "such as answerdotai/ModernBERT-base"),
        ({}, {}, "token-classification", "(BertModel): `--task token-classification`"),
        ({}, {"architectures": []}, None, "(no architectures)"),
        ({}, {"architectures": ["BertForTokenClassification"]}, None, "LABEL_0, LABEL_1"),
        ({}, {"vocab_size": "many"}, None, "Field 'vocab_size' expected int, got str"),
        ({}, {"model_type": ["bert"]}, None, "model_type ['bert']"),
        ({}, {"id2label": ["bad", "good"]}, None, "config.json is damaged"),
        ({"tokenizer_config.json": []}, {}, None, "tokenizer_config.json is damaged"),
    ],
)
def test_a_checkpoint_that_cannot_be_imported_is_refused(
    written: Written, files: dict[str, Any], config: dict[str, Any], task: str | None, told: str
) -> None:
    with pytest.raises(ArtifactError) as refusal:
        described(written(files, **config), task)
    assert told in str(refusal.value)


def test_an_encoder_does_not_read_pairs(written: Written) -> None:
    with pytest.raises(ArtifactError, match="leave `--pairs` out"):
        described(written(), reads_pairs=True)


SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def test_weights_in_shards_are_read_with_their_list(written: Written) -> None:
    places = dict(zip("ab", SHARDS, strict=True))
    published = written({INDEX: {"weight_map": places}, "model.safetensors": None})
    for shard in SHARDS:
        save_file({}, Path(published.name) / shard)
    assert described(published).task == "feature-extraction"
    assert {INDEX, *SHARDS} <= set(published.sha256())


def vocabulary_alone(published: Published, *words: str) -> None:
    """Replace tokenizer.json by vocab.txt, as many early models are published."""
    file = Path(published.name) / "tokenizer.json"
    known = Tokenizer.from_file(str(file)).get_vocab()
    file.with_name("vocab.txt").write_text("\n".join([*sorted(known, key=known.__getitem__), *words]))
    file.unlink()


def test_a_tokenizer_is_made_of_a_vocabulary(written: Written) -> None:
    published = written()
    vocabulary_alone(published)
    assert described(published).family == "bert"
    assert "vocab.txt" in published.sha256()


def test_a_vocabulary_of_words_with_capitals_has_to_say_whether_texts_are_lowercased(written: Written) -> None:
    published = written(vocab_size=250)
    vocabulary_alone(published, *(f"Word{chr(ord('a') + place)}" for place in range(9)))
    with pytest.raises(ArtifactError, match="do_lower_case"):
        described(published)
    (Path(published.name) / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert described(published).family == "bert"


def test_a_model_that_does_not_fit_into_memory_is_refused(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    published = written()
    weights = Path(published.name) / "model.safetensors"
    monkeypatch.setattr("clozeline.orchestration.importing.available_bytes", lambda: weights.stat().st_size)
    with pytest.raises(ArtifactError, match="import a smaller model"):
        described(published)


@pytest.mark.parametrize(
    ("pooling", "way"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, "mean"),
        ({"pooling_mode_cls_token": True}, "cls"),
        ({"pooling_mode": "max"}, "max"),
    ],
)
def test_the_pooling_is_the_one_that_the_files_switch_on(written: Written, pooling: dict[str, Any], way: str) -> None:
    found = sentence_vectors(written(sentence_files(pooling)), 32)
    assert found is not None
    assert found.pooling == way


@pytest.mark.parametrize(
    "pooling",
    [
        {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
        {"pooling_mode_mean_tokens": False},
        {"pooling_mode_weightedmean_tokens": True},
        {"pooling_mode_mean_tokens": True, "word_embedding_dimension": 64},
    ],
)
def test_a_pooling_that_is_mixed_up_or_unknown_is_refused(written: Written, pooling: dict[str, Any]) -> None:
    with pytest.raises(ArtifactError, match="1_Pooling"):
        sentence_vectors(written(sentence_files(pooling)), 32)


def test_prompts_and_the_longest_text_are_read(written: Written) -> None:
    prompts = {"prompts": {"query": "query: ", "document": ""}, "default_prompt_name": "query"}
    files = {"config_sentence_transformers.json": prompts, "sentence_bert_config.json": {"max_seq_length": 16}}
    found = sentence_vectors(written(sentence_files({"pooling_mode_mean_tokens": True}, **files)), 32)
    assert found == SentenceVectors("mean", {"query": "query: "}, "query", 16)


def test_a_module_that_the_graph_does_not_compute_is_refused(written: Written) -> None:
    files = sentence_files({"pooling_mode_mean_tokens": True})
    files["modules.json"].append({"type": "sentence_transformers.models.Dense"})
    with pytest.raises(ArtifactError, match="Dense is not exported"):
        sentence_vectors(written(files), 32)


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("modules.json", ["Transformer"], "'Transformer'"),
        ("sentence_bert_config.json", {"max_seq_length": "16"}, "max_seq_length: '16'"),
        ("config_sentence_transformers.json", {"prompts": ["query: "]}, "prompts: \\['query: '\\]"),
        ("config_sentence_transformers.json", {"default_prompt_name": 1}, "default_prompt_name: 1"),
    ],
)
def test_a_key_of_the_wrong_type_is_refused_by_name(written: Written, name: str, content: Any, told: str) -> None:
    files = sentence_files({"pooling_mode_mean_tokens": True}) | {name: content}
    with pytest.raises(ArtifactError, match=f"(?s){name} is damaged.*{told}"):
        sentence_vectors(written(files), 32)


def test_vectors_that_are_not_compared_by_their_angle_are_refused(written: Written) -> None:
    files = sentence_files(
        {"pooling_mode_mean_tokens": True}, **{"config_sentence_transformers.json": {"similarity_fn_name": "dot"}}
    )
    del files["modules.json"][2]
    with pytest.raises(ArtifactError, match="similarity_fn_name: dot"):
        sentence_vectors(written(files), 32)


def test_a_model_without_these_files_is_no_sentence_encoder(written: Written) -> None:
    assert sentence_vectors(written(), 32) is None


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


def _codebert(
    build: Callable[[RobertaConfig], PreTrainedModel],
) -> Callable[[], PreTrainedModel]:
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
    told = " ".join(choice.why for choice in choices().values())
    assert [name for name in KINDS if name.partition(",")[0] not in told] == []
