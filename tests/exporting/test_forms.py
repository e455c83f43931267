"""A masked language model's graph computes its last layer at the masks only, if only these are requested.

B texts, L tokens, Q positions that the last layer is computed at, H hidden, V vocabulary.
"""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, ValueInfoProto, helper

from clozeline.exporting.forms import MOST, add_likeliest, last_layer_of, num_likeliest
from clozeline.exporting.graph import read_graph
from clozeline.exporting.trained import TrainedModel, open_trained
from clozeline.inference.language import TOP_IDS, TOP_SCORES
from clozeline.inference.open_model import MASKS_ONLY, likeliest
from clozeline.records.package import FILES

Feed = dict[str, np.ndarray]
HIDDEN = 32
INPUTS = ("input_ids", "attention_mask", MASKS_ONLY)


@pytest.fixture(scope="module")
def trained(small_encoder: Path) -> TrainedModel:
    return open_trained(small_encoder)


@pytest.fixture(scope="module")
def graph(encoder_package: Path) -> Path:
    return encoder_package / FILES.fp32


def run(model: ModelProto, names: list[str], feed: Feed) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    values: list[np.ndarray] = session.run(names, feed)
    return values


def feed(mask_id: int, masks: tuple[int, ...], *, only_masks: bool = False) -> Feed:
    """Two texts, the shorter one padded and with a mask; the other with those at `masks`."""
    length = 30
    input_ids_BL = np.random.default_rng(0).integers(5, 90, size=(2, length))
    input_ids_BL[input_ids_BL == mask_id] = 7
    input_ids_BL[0, list(masks)] = mask_id
    attention_mask_BL = np.ones_like(input_ids_BL)
    attention_mask_BL[1, length // 2 :] = 0
    input_ids_BL[1] *= attention_mask_BL[1]
    input_ids_BL[1, 2] = mask_id
    return {"input_ids": input_ids_BL, "attention_mask": attention_mask_BL, MASKS_ONLY: np.array([only_masks])}


@pytest.mark.parametrize("masks", [(), (29,), (0, 1, 28), tuple(range(1, 30))])
def test_computing_the_last_layer_only_at_masks_gives_the_same_logits(
    trained: TrainedModel, graph: Path, masks: tuple[int, ...]
) -> None:
    assert last_layer_of(trained) == "masked positions"
    model = read_graph(graph)
    product = [node.output[0] for node in model.graph.node if node.name == "model.encoder.layers.1.mlp.output"][-1]
    model.graph.output.append(ValueInfoProto(name=product))
    mask_id, names = trained.tokenizer.mask_token_id, ["logits", "sentence_embedding", product]
    logits_MV, embedding_BH, whole_BLH = run(model, names, feed(mask_id, masks))
    only_MV, none_0H, chosen_BQH = run(model, names, feed(mask_id, masks, only_masks=True))
    assert len(only_MV) == len(masks) + 1
    np.testing.assert_allclose(only_MV, logits_MV, atol=1e-5)
    assert (embedding_BH.shape, none_0H.shape) == ((2, HIDDEN), (0, HIDDEN))
    assert (whole_BLH.shape[1], chosen_BQH.shape[1]) == (30, max(len({0, *masks}), 2))


LARGE = 30_522


def named(logits_MV: np.ndarray) -> list[list[tuple[int, float]]]:
    """Return what a graph with these logits answers as the likeliest tokens and their scores."""
    vocab_size = logits_MV.shape[1]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["masks", vocab_size]) for name in ("x", "logits")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["logits"])], "test", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    add_likeliest(model, vocab_size, "masks")
    onnx.checker.check_model(model, full_check=True)
    ids_MK, scores_MK = run(model, [TOP_IDS, TOP_SCORES], {"x": logits_MV})
    assert ids_MK.shape == scores_MK.shape == (len(logits_MV), num_likeliest(vocab_size))
    return [
        list(zip(ids.tolist(), scores.tolist(), strict=True)) for ids, scores in zip(ids_MK, scores_MK, strict=True)
    ]


@pytest.mark.parametrize(("vocab_size", "step"), [(1, 0.5), (7, 0.5), (MOST, 1e-6), (LARGE, 0.5)])
def test_the_graph_returns_the_likeliest_tokens_of_its_logits(vocab_size: int, step: float) -> None:
    """The logits are rounded so that many are equal: among equal logits, the lower id comes first."""
    drawn_MV = np.random.default_rng(vocab_size).normal(scale=3, size=(4, vocab_size))
    logits_MV = (np.round(drawn_MV / step) * step).astype(np.float32)
    for found, logits_V in zip(named(logits_MV), logits_MV, strict=True):
        expected = likeliest(logits_V, num_likeliest(vocab_size))
        assert [token for token, _ in found] == [token for token, _ in expected]
        np.testing.assert_allclose([score for _, score in found], [score for _, score in expected], rtol=1e-4)
    # Without a mask; older versions of ONNX Runtime divided by the number of rows.
    assert named(logits_MV[:0]) == []


def test_large_logits_do_not_overflow_and_nan_logits_return_nan_scores() -> None:
    """`Question.answer` checks the scores for NaN, as it does with logits."""
    (found,) = named(np.array([[1e4, -1e4, 1e4]], dtype=np.float32))
    assert [token for token, _ in found] == [0, 2, 1]
    assert [score for _, score in found] == pytest.approx([0.5, 0.5, 0.0], abs=1e-12)
    (found,) = named(np.array([[0, 0, 0, 0, np.nan, 0, 0, 0, 0]], dtype=np.float32))
    assert np.isnan([score for _, score in found]).any()
