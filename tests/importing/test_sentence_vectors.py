from typing import Any

import pytest

from clozeline.orchestration.importing import SentenceVectors, sentence_vectors
from clozeline.system.errors import ArtifactError
from tests.importing.conftest import Written, sentence_files


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
