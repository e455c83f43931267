"""A model that cannot be exported is refused before any work, by file and fault."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import ModernBertForMaskedLM

from clozeline.exporting import trained
from clozeline.exporting.trained import open_trained
from clozeline.system.errors import ArtifactError


@pytest.fixture
def encoder(small_encoder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small_encoder, tmp_path / "encoder"))


def change_config(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | changes), encoding="utf-8")


def drop_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["head.dense.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def cut(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return damage


def change_tokenizer(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config | changes), encoding="utf-8")


def renumber(folder: Path) -> None:
    """Move a token's id past the last row of the table; the number of tokens stays."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer["model"]["vocab"]["the"] = 90
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")


def spoil(folder: Path) -> None:
    """Write a NaN into a row that random texts need not use."""
    weights = load_file(folder / "model.safetensors")
    weights["model.embeddings.tok_embeddings.weight"][77, 3] = torch.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def without_model(folder: Path) -> None:
    """Leave valid JSON that is not a tokenizer."""
    (folder / "tokenizer.json").write_text('{"version": "1.0"}', encoding="utf-8")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shutil.rmtree, "holds no model"),
        (lambda folder: (folder / "model.safetensors").unlink(), "is not a complete model"),
        (lambda folder: (folder / "tokenizer.json").unlink(), r"no .*tokenizer\.json"),
        (cut("model.safetensors"), "the weights of .* cannot be read"),
        (cut("config.json"), r"config\.json is damaged"),
        (cut("tokenizer.json"), r"tokenizer\.json is damaged"),
        (cut("tokenizer_config.json"), r"tokenizer_config\.json is damaged"),
        (without_model, r"tokenizer\.json is damaged"),
        (lambda folder: (folder / "config.json").write_text("[]"), r"config\.json is damaged.* a list"),
        (lambda folder: change_config(folder, hidden_size="x"), r"config\.json is damaged"),
        (drop_weight, r"such as head\.dense\.weight"),
        (lambda folder: change_config(folder, architectures=["ModernBertDecoder"]), "architectures: ModernBertDecoder"),
        (lambda folder: change_config(folder, architectures=None), "architectures: none"),
        (lambda folder: change_config(folder, architectures=[None]), "architectures: None"),
        (lambda folder: change_config(folder, architectures=5), "architectures: 5"),
        (lambda folder: change_config(folder, no_answer_margin="x"), r"config\.json is damaged"),
        (lambda folder: change_config(folder, no_answer_margin=math.inf), "no_answer_margin inf"),
        (lambda folder: change_tokenizer(folder, model_max_length="x"), r"tokenizer_config\.json is damaged"),
        (lambda folder: change_tokenizer(folder, model_max_length=0), "room for 0 tokens, 2 of them special"),
        (lambda folder: change_tokenizer(folder, model_max_length=2), "room for 2 tokens, 2 of them special"),
        (lambda folder: change_tokenizer(folder, pad_token=None), "a tokenizer without a padding token"),
        (lambda folder: change_tokenizer(folder, mask_token=None), "a tokenizer without a mask token"),
        (renumber, "a tokenizer with ids up to 90, a model of 90"),
        (spoil, r"model\.safetensors has weights that are not finite.* such as encoder\.embeddings\.tokens"),
        (
            lambda folder: change_config(folder, model_type="clozeline-encoder"),
            "does not say how your own encoder is built",
        ),
    ],
)
def test_an_incomplete_model_folder_is_refused(encoder: Path, damage: Callable[[Path], Any], message: str) -> None:
    damage(encoder)
    with pytest.raises(ArtifactError, match=message):
        open_trained(encoder)


def test_a_tokenizer_larger_than_the_model_is_refused(encoder: Path, small_encoder: Path) -> None:
    model = ModernBertForMaskedLM.from_pretrained(small_encoder)
    torch.manual_seed(0)
    model.resize_token_embeddings(20)
    model.save_pretrained(encoder)
    with pytest.raises(ArtifactError, match="a model of 20"):
        open_trained(encoder)


def test_a_tensor_too_large_for_a_graph_is_refused_before_any_work(
    small_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest has 96 x 32 numbers of 4 bytes."""
    monkeypatch.setattr(trained, "MAX_PROTOBUF_BYTES", 96 * 32 * 4 + 1)
    open_trained(small_encoder)
    monkeypatch.setattr(trained, "MAX_PROTOBUF_BYTES", 96 * 32 * 4)
    with pytest.raises(ArtifactError, match=r"query_key_value\.weight of 96 x 32 has 0\.00 GiB"):
        open_trained(small_encoder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id2label": {"0": "jax", "1": "numpy", "3": "torch"}}, r"config\.json is damaged.*KeyError\(2\)"),
        ({"decision_threshold": "x"}, r"config\.json is damaged"),
        ({"decision_threshold": math.nan}, "decision_threshold nan"),
        ({"decision_threshold": 1.5}, "decision_threshold 1.5"),
    ],
)
def test_gaps_in_label_ids_and_invalid_thresholds_are_refused(
    small_topics: Path, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    folder = Path(shutil.copytree(small_topics, tmp_path / "topics"))
    change_config(folder, **changes)
    with pytest.raises(ArtifactError, match=message):
        open_trained(folder)


def test_a_question_must_leave_room_for_a_context(small_answerer: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(small_answerer, tmp_path / "answerer"))
    change_tokenizer(folder, model_max_length=5)
    assert open_trained(folder).max_length == 5
    change_tokenizer(folder, model_max_length=4)
    with pytest.raises(ArtifactError, match="room for 4 tokens, 3 of them special"):
        open_trained(folder)


def test_a_regression_of_several_numbers_is_refused(small_classifier: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(small_classifier, tmp_path / "classifier"))
    change_config(folder, problem_type="regression")
    with pytest.raises(ArtifactError, match="3 labels, problem type regression"):
        open_trained(folder)


@pytest.mark.parametrize(
    ("changes", "scores", "threshold"),
    [
        ({}, "softmax", None),
        ({"problem_type": "single_label_classification"}, "softmax", None),
        ({"problem_type": "multi_label_classification"}, "sigmoid", 0.5),
        ({"problem_type": "multi_label_classification", "decision_threshold": 0.3}, "sigmoid", 0.3),
    ],
)
def test_the_configuration_states_how_labels_are_scored(
    small_classifier: Path, tmp_path: Path, changes: dict[str, object], scores: str, threshold: float | None
) -> None:
    folder = Path(shutil.copytree(small_classifier, tmp_path / "classifier"))
    change_config(folder, **changes)
    trained = open_trained(folder)
    assert (trained.label_scores, trained.decision_threshold) == (scores, threshold)


@pytest.mark.parametrize(
    ("changes", "is_of_pairs"),
    [
        ({}, False),
        ({"reads_pairs": True}, True),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}, True),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, True),
    ],
)
def test_a_cross_encoder_is_recognized_by_its_configuration(
    small_classifier: Path, tmp_path: Path, changes: dict[str, object], is_of_pairs: bool
) -> None:
    folder = Path(shutil.copytree(small_classifier, tmp_path / "classifier"))
    change_config(folder, **changes)
    assert open_trained(folder).reads_pairs == is_of_pairs


def test_every_head_is_recognized(small_tagger: Path, small_answerer: Path, small_topics: Path) -> None:
    tagger, answerer, topics = (open_trained(folder) for folder in (small_tagger, small_answerer, small_topics))
    assert (tagger.task, tagger.labels) == ("token-classification", ("O", "B-thing", "I-thing", "B-act", "I-act"))
    assert (answerer.task, answerer.labels, answerer.no_answer_margin) == ("question-answering", (), 0.25)
    assert (topics.task, topics.label_scores, topics.decision_threshold) == ("text-classification", "sigmoid", 0.45)


def test_a_tagger_ignores_the_multi_label_and_pair_settings(small_tagger: Path, tmp_path: Path) -> None:
    """The configuration's setting for the labels of a text does not apply to tags."""
    folder = Path(shutil.copytree(small_tagger, tmp_path / "tagger"))
    change_config(folder, problem_type="multi_label_classification", reads_pairs=True)
    tagger = open_trained(folder)
    assert (tagger.label_scores, tagger.decision_threshold, tagger.reads_pairs) == ("softmax", None, False)


def test_the_maximum_length_of_the_tokenizer_limits_the_model(encoder: Path) -> None:
    change_tokenizer(encoder, model_max_length=10)
    assert open_trained(encoder).max_length == 10


def test_labels_are_in_the_order_of_the_logits(small_classifier: Path, small_encoder: Path) -> None:
    assert open_trained(small_classifier).labels == ("jax", "numpy", "torch")
    assert open_trained(small_encoder).labels == ()
