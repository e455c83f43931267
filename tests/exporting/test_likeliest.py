"""The likeliest tokens of each mask in a graph's output are the first tokens of a stable sort of its logits.

M masks, V vocabulary.
"""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from clozeline.exporting.forms import MOST, add_likeliest, num_likeliest
from clozeline.inference.language import TOP_IDS, TOP_SCORES
from clozeline.inference.open_model import likeliest

LARGE = 30_522


def session(vocab_size: int) -> onnxruntime.InferenceSession:
    """Session of a graph that returns its input logits and the likeliest of them."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["masks", vocab_size]) for name in ("x", "logits")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["logits"])], "test", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    add_likeliest(model, vocab_size, "masks")
    onnx.checker.check_model(model, full_check=True)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def named(logits_MV: np.ndarray) -> list[list[tuple[int, float]]]:
    ids_MK, scores_MK = session(logits_MV.shape[1]).run([TOP_IDS, TOP_SCORES], {"x": logits_MV})
    assert ids_MK.shape == scores_MK.shape == (len(logits_MV), num_likeliest(logits_MV.shape[1]))
    return [
        list(zip(ids.tolist(), scores.tolist(), strict=True)) for ids, scores in zip(ids_MK, scores_MK, strict=True)
    ]


@pytest.mark.parametrize("vocab_size", [1, 7, MOST, LARGE])
@pytest.mark.parametrize("step", [1e-6, 0.5])
def test_the_graph_returns_the_likeliest_tokens_of_its_logits(vocab_size: int, step: float) -> None:
    """The logits are rounded so that many are equal: among equal logits, the lower id comes first."""
    drawn_MV = np.random.default_rng(vocab_size).normal(scale=3, size=(4, vocab_size))
    logits_MV = (np.round(drawn_MV / step) * step).astype(np.float32)
    for found, logits_V in zip(named(logits_MV), logits_MV, strict=True):
        expected = likeliest(logits_V, num_likeliest(vocab_size))
        assert [token for token, _ in found] == [token for token, _ in expected]
        np.testing.assert_allclose([score for _, score in found], [score for _, score in expected], rtol=1e-4)


def test_large_logits_do_not_overflow() -> None:
    (found,) = named(np.array([[1e4, -1e4, 1e4]], dtype=np.float32))
    assert [token for token, _ in found] == [0, 2, 1]
    assert [score for _, score in found] == pytest.approx([0.5, 0.5, 0.0], abs=1e-12)


@pytest.mark.parametrize("vocab_size", [7, LARGE])
def test_a_text_without_a_mask_has_no_likeliest_token(vocab_size: int) -> None:
    """Older versions of ONNX Runtime divided by the number of rows."""
    assert named(np.zeros((0, vocab_size), dtype=np.float32)) == []


def test_a_graph_with_nan_logits_returns_nan_scores() -> None:
    """`Question.answer` checks the scores for NaN, as it does with logits."""
    logits_MV = np.zeros((1, 9), dtype=np.float32)
    logits_MV[0, 4] = np.nan
    (found,) = named(logits_MV)
    assert np.isnan([score for _, score in found]).any()
