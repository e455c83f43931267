"""Graphs of the families for long texts, at the length that they are published for. (Longformer has none, and the
export refuses it: test_families.py.)"""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForMaskedLM

from clozeline.encoder.families import FAMILIES
from clozeline.encoder.families.layout import TokenIds
from clozeline.exporting.parity import largest_difference
from clozeline.exporting.to_onnx import export_onnx
from clozeline.exporting.trained import open_trained
from clozeline.params.reading import read_params

PROJECT = Path(__file__).parents[2]
SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 1, "intermediate_size": 48}


@pytest.mark.parametrize(("family", "length"), [("modernbert", 8192), ("big_bird", 4096)])
def test_the_graph_computes_what_the_model_computes_on_the_longest_row(
    family: str, length: int, save_trained: object, tmp_path: Path
) -> None:
    """Traced on a short one; beside a text of half its length, padded. Weights as after training: attention that is
    nearly a mean would hide a wrong window.
    """
    params = read_params(PROJECT / "params.yaml").pretrain.model
    shape = {"family": family, "size": None, "max_position_embeddings": length, **SHAPE}
    config = FAMILIES[family].forms["mlm"].configure(params.model_copy(update=shape), TokenIds(90, 0, 2, 3))
    torch.manual_seed(0)
    model = AutoModelForMaskedLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter += torch.randn_like(parameter) * 0.15
    trained = open_trained(save_trained(model))
    assert trained.max_length == length
    path = tmp_path / "model.onnx"
    inputs = tuple(export_onnx(trained, 23, path))
    assert largest_difference(trained, path, inputs, batch_sizes=(2,)) <= 1e-4
