"""Causal families leave training whole: the next token and the embedding are those of the trained model.

One has windows, one counts its positions from [PAD], and one runs on transformers' classes.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from clozeline.encoder.families import FAMILIES
from clozeline.exporting.parity import largest_difference
from clozeline.exporting.to_onnx import export_onnx
from clozeline.exporting.trained import open_trained
from clozeline.inference.open_model import GraphSession, padded
from clozeline.inference.tokenization import TokenizedText
from clozeline.params.reading import read_params
from tests.exporting.test_families import CHANGES, IDS, LENGTH, OPSET, PROJECT, SHAPE


@pytest.mark.parametrize("family", ["modernbert", "roberta", "big_bird"])
def test_the_graph_gives_the_predictions_of_the_model(family: str, save_trained: object, tmp_path: Path) -> None:
    params = read_params(PROJECT / "params.yaml").pretrain.model
    shape = {"family": family, "size": None, "max_position_embeddings": LENGTH, **SHAPE}
    config = FAMILIES[family].forms["clm"].configure(params.model_copy(update=shape), IDS)
    config.update(CHANGES.get(family, {}))
    torch.manual_seed(0)
    trained = open_trained(save_trained(AutoModelForCausalLM.from_config(config)))
    assert trained.task == "text-generation"
    path = tmp_path / "model.onnx"
    inputs = tuple(export_onnx(trained, OPSET, path))
    assert largest_difference(trained, path, inputs) < 1e-5
    assert_a_later_token_changes_no_earlier_prediction(path, inputs)


def assert_a_later_token_changes_no_earlier_prediction(path: Path, inputs: tuple[str, ...]) -> None:
    """The prediction is that of the last token that is no padding, whatever else is in the batch."""
    session = GraphSession(path, input_names=inputs, num_threads=1)
    texts = [TokenizedText(np.array(ids), ()) for ids in ([2, 10, 11], [2, 10, 11, 12, 13, 14, 15])]
    (alone_BV,) = session.run(padded(texts, [0], 0), "logits")
    (together_BV,) = session.run(padded(texts, [0, 1], 0), "logits")
    np.testing.assert_allclose(together_BV[0], alone_BV[0], atol=1e-5)
    assert np.abs(together_BV[1] - together_BV[0]).max() > 1e-3
