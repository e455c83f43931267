"""A model that cannot be exported is refused before any work, by file and fault."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import ModernBertForMaskedLM

from clozeline.errors import ArtifactError
from clozeline.exporting.trained import open_trained


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


def truncate_weights(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shutil.rmtree, "holds no model"),
        (lambda folder: (folder / "model.safetensors").unlink(), "is not a whole model"),
        (lambda folder: (folder / "tokenizer.json").unlink(), r"no .*tokenizer\.json"),
        (truncate_weights, r"model\.safetensors is damaged"),
        (drop_weight, r"such as head\.dense\.weight"),
        (lambda folder: change_config(folder, architectures=["ModernBertDecoder"]), "architectures: ModernBertDecoder"),
        (lambda folder: change_config(folder, architectures=None), "architectures: none"),
        (lambda folder: change_config(folder, model_type="clozeline-encoder"), "for an encoder of your own"),
    ],
)
def test_a_folder_that_is_no_whole_model_is_refused(encoder: Path, damage: Callable[[Path], Any], message: str) -> None:
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


@pytest.mark.parametrize("changes", [{"problem_type": "multi_label_classification"}, {"problem_type": "regression"}])
def test_a_classifier_without_one_label_a_text_is_refused(
    small_classifier: Path, tmp_path: Path, changes: dict[str, object]
) -> None:
    folder = Path(shutil.copytree(small_classifier, tmp_path / "classifier"))
    change_config(folder, **changes)
    with pytest.raises(ArtifactError, match=str(changes["problem_type"])):
        open_trained(folder)


def test_what_the_tokenizer_reads_limits_the_length(encoder: Path) -> None:
    path = encoder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(config | {"model_max_length": 10}), encoding="utf-8")
    assert open_trained(encoder).max_length == 10


def test_labels_are_in_the_order_of_the_logits(small_classifier: Path, small_encoder: Path) -> None:
    assert open_trained(small_classifier).labels == ("jax", "numpy", "torch")
    assert open_trained(small_encoder).labels == ()
