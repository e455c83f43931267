"""A model that cannot be exported is refused before any work, by file and fault."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from clozeline.exporting import trained
from clozeline.exporting.trained import open_trained
from clozeline.system.errors import ArtifactError
from tests.make.models import LABELS

Copied = Callable[..., Path]


@pytest.fixture
def copied(tmp_path: Path, request: pytest.FixtureRequest) -> Copied:
    """`copied("encoder", key=value)`: a copy of `small_encoder`, with other values in its config.json or in `file`."""

    def copy(kind: str, file: str = "config.json", **changes: object) -> Path:
        source: Path = request.getfixturevalue(f"small_{kind}")
        folder = shutil.copytree(source, tmp_path / kind, dirs_exist_ok=True)
        told = json.loads((folder / file).read_text(encoding="utf-8"))
        (folder / file).write_text(json.dumps(told | changes), encoding="utf-8")
        return folder

    return copy


def cut(name: str) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return damage


def change_weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    return damage


def spoil(weights: dict[str, torch.Tensor]) -> None:
    """Write a NaN into a row that random texts need not use."""
    weights["model.embeddings.tok_embeddings.weight"][77, 3] = torch.nan


def renumber(folder: Path) -> None:
    """Move a token's id past the last row of the table; the number of tokens stays."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer["model"]["vocab"]["the"] = 90
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (shutil.rmtree, "holds no model"),
        (lambda folder: (folder / "model.safetensors").unlink(), "is not a complete model"),
        (lambda folder: (folder / "tokenizer.json").unlink(), r"no .*tokenizer\.json"),
        (cut("model.safetensors"), "the weights of .* cannot be read"),
        (cut("config.json"), r"config\.json is damaged"),
        (lambda folder: (folder / "config.json").write_text("[]"), r"config\.json is damaged.* a list"),
        (change_weights(lambda weights: weights.pop("head.dense.weight")), r"such as head\.dense\.weight"),
        (change_weights(spoil), r"not finite.* such as encoder\.embeddings\.tokens"),
        (renumber, "ids up to 90, a model of 90"),
    ],
)
def test_an_incomplete_model_folder_is_refused(copied: Copied, damage: Callable[[Path], object], told: str) -> None:
    folder = copied("encoder")
    damage(folder)
    with pytest.raises(ArtifactError, match=told):
        open_trained(folder)


CONFIG, TOKENIZER = "config.json", "tokenizer_config.json"


@pytest.mark.parametrize(
    ("kind", "file", "key", "value", "told"),
    [
        ("encoder", CONFIG, "hidden_size", "x", r"config\.json is damaged"),
        ("encoder", CONFIG, "architectures", 5, "architectures: 5"),
        ("encoder", CONFIG, "model_type", "clozeline-encoder", "your own encoder"),
        ("encoder", CONFIG, "no_answer_margin", math.inf, "no_answer_margin inf"),
        ("encoder", TOKENIZER, "model_max_length", 2, "room for 2 tokens, 2 of them special"),
        ("encoder", TOKENIZER, "pad_token", None, "without a padding token"),
        ("encoder", TOKENIZER, "mask_token", None, "without a mask token"),
        ("answerer", TOKENIZER, "model_max_length", 4, "room for 4 tokens, 3 of them special"),
        ("classifier", CONFIG, "problem_type", "regression", "3 labels, problem type regression"),
        ("topics", CONFIG, "id2label", {"0": "jax", "1": "numpy", "3": "torch"}, r"config\.json.*KeyError\(2\)"),
        ("topics", CONFIG, "decision_threshold", 1.5, "decision_threshold 1.5"),
    ],
)
def test_an_invalid_value_of_a_configuration_is_refused(
    copied: Copied, kind: str, file: str, key: str, value: object, told: str
) -> None:
    with pytest.raises(ArtifactError, match=told):
        open_trained(copied(kind, file, **{key: value}))


def test_a_tensor_too_large_for_a_graph_is_refused_before_any_work(
    small_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest has 96 x 32 numbers of 4 bytes."""
    monkeypatch.setattr(trained, "MAX_PROTOBUF_BYTES", 96 * 32 * 4 + 1)
    open_trained(small_encoder)
    monkeypatch.setattr(trained, "MAX_PROTOBUF_BYTES", 96 * 32 * 4)
    with pytest.raises(ArtifactError, match=r"query_key_value\.weight \(96 x 32\)"):
        open_trained(small_encoder)


MULTI_LABEL = {"problem_type": "multi_label_classification"}
OF_SIGMOID = {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}
OF_IDENTITY = {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}


@pytest.mark.parametrize(
    ("kind", "changes", "facts"),
    [
        ("classifier", {}, {"label_scores": "softmax", "labels": LABELS, "reads_pairs": False}),
        ("classifier", MULTI_LABEL, {"label_scores": "sigmoid", "decision_threshold": 0.5}),
        ("classifier", {"reads_pairs": True}, {"reads_pairs": True}),
        ("classifier", OF_SIGMOID, {"reads_pairs": True}),
        ("classifier", OF_IDENTITY, {"reads_pairs": True}),
        ("topics", {}, {"task": "text-classification", "label_scores": "sigmoid", "decision_threshold": 0.45}),
        ("answerer", {}, {"task": "question-answering", "labels": (), "no_answer_margin": 0.25}),
        # What a configuration says of the labels of a text does not apply to tags.
        ("tagger", MULTI_LABEL | {"reads_pairs": True}, {"label_scores": "softmax", "reads_pairs": False}),
    ],
)
def test_the_configuration_states_the_head_and_how_its_labels_are_scored(
    copied: Copied, kind: str, changes: dict[str, object], facts: dict[str, object]
) -> None:
    opened = open_trained(copied(kind, **changes))
    assert {name: getattr(opened, name) for name in facts} == facts


def test_the_maximum_length_of_the_tokenizer_limits_the_model(copied: Copied) -> None:
    assert open_trained(copied("encoder", TOKENIZER, model_max_length=10)).max_length == 10
