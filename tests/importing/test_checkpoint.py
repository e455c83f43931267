"""Claim: what cannot be imported is refused before anything is converted, by one error that says why."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from clozeline.orchestration.importing import described
from clozeline.records.published import INDEX, Published
from clozeline.system.errors import ArtifactError
from tests.importing.conftest import Written, sentence_files

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
