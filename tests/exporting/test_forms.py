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
from clozeline.exporting.to_onnx import export_onnx
from clozeline.exporting.trained import TrainedModel, open_trained
from clozeline.inference.language import TOP_IDS, TOP_SCORES
from clozeline.inference.open_model import MASKS_ONLY, GraphSession, TextBatch, likeliest

Feed = dict[str, np.ndarray]
HIDDEN = 32
INPUTS = ("input_ids", "attention_mask", MASKS_ONLY)


@pytest.fixture(scope="module")
def trained(small_encoder: Path) -> TrainedModel:
    return open_trained(small_encoder)


@pytest.fixture(scope="module")
def graph(trained: TrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("at_masks") / "model.onnx"
    assert tuple(export_onnx(trained, 23, path)) == INPUTS
    return path


@pytest.fixture(scope="module")
def with_last_product(graph: Path) -> tuple[ModelProto, str]:
    """The graph with the last layer's last product as an extra output, and the name of that output."""
    model = read_graph(graph)
    product = [node.output[0] for node in model.graph.node if node.name == "model.encoder.layers.1.mlp.output"][-1]
    model.graph.output.append(ValueInfoProto(name=product))
    return model, product


def session(model: ModelProto) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def feed(mask_id: int, masks: tuple[int, ...], length: int = 30) -> Feed:
    """Two texts, the shorter one padded and with a mask; the other with those at `masks`."""
    input_ids_BL = np.random.default_rng(0).integers(5, 90, size=(2, length))
    input_ids_BL[input_ids_BL == mask_id] = 7
    input_ids_BL[0, list(masks)] = mask_id
    attention_mask_BL = np.ones_like(input_ids_BL)
    attention_mask_BL[1, length // 2 :] = 0
    input_ids_BL[1] *= attention_mask_BL[1]
    input_ids_BL[1, 2] = mask_id
    return {"input_ids": input_ids_BL, "attention_mask": attention_mask_BL, MASKS_ONLY: np.array([False])}


def test_the_manifest_records_that_the_last_layer_runs_at_masks(trained: TrainedModel) -> None:
    assert last_layer_of(trained) == "masked positions"


@pytest.mark.parametrize("masks", [(), (1,), (29,), (0, 1, 28), tuple(range(1, 30))])
def test_computing_the_last_layer_only_at_masks_gives_the_same_logits(
    trained: TrainedModel, with_last_product: tuple[ModelProto, str], masks: tuple[int, ...]
) -> None:
    model, product = with_last_product
    told = feed(trained.tokenizer.mask_token_id, masks)
    names = ["logits", "sentence_embedding", product]
    logits_MV, embedding_BH, whole_BLH = session(model).run(names, told)
    only_MV, none_0H, chosen_BQH = session(model).run(names, told | {MASKS_ONLY: np.array([True])})
    assert len(only_MV) == len(masks) + 1
    np.testing.assert_allclose(only_MV, logits_MV, atol=1e-5)
    assert (embedding_BH.shape, none_0H.shape) == ((2, HIDDEN), (0, HIDDEN))
    assert (whole_BLH.shape[1], chosen_BQH.shape[1]) == (30, max(len({0, *masks}), 2))


def test_a_text_without_a_mask_has_no_logits(trained: TrainedModel, graph: Path) -> None:
    told = feed(trained.tokenizer.mask_token_id, ())
    told["input_ids"][1, 2] = 7
    logits_MV, ids_MK = session(read_graph(graph)).run(["logits", "top_ids"], told | {MASKS_ONLY: np.array([True])})
    assert len(logits_MV) == len(ids_MK) == 0


def test_our_sessions_compute_the_whole_last_layer_only_for_embeddings(
    trained: TrainedModel, graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = GraphSession(graph, input_names=INPUTS, num_threads=1)
    fed: list[bool] = []

    class Recorder:
        def run(self, outputs: list[str], inputs: Feed) -> list[np.ndarray]:
            fed.append(bool(inputs[MASKS_ONLY][0]))
            return []

    monkeypatch.setattr(opened, "_session", Recorder())
    told = feed(trained.tokenizer.mask_token_id, (3,))
    batch = TextBatch((0, 1), told["input_ids"], told["attention_mask"])
    for outputs in (("logits",), ("top_ids", "top_scores"), ("sentence_embedding",), ("logits", "sentence_embedding")):
        opened.run(batch, *outputs)
    assert fed == [True, True, False, False]


def test_opening_a_graph_with_an_optional_input_logs_no_warning(graph: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """This also holds outside Clozeline: ONNX Runtime warns of inputs that have defaults."""
    onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    assert capfd.readouterr().err == ""


LARGE = 30_522


def likeliest_in(vocab_size: int) -> onnxruntime.InferenceSession:
    """Session of a graph that returns its input logits and the likeliest of them."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["masks", vocab_size]) for name in ("x", "logits")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["logits"])], "test", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    add_likeliest(model, vocab_size, "masks")
    onnx.checker.check_model(model, full_check=True)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def named(logits_MV: np.ndarray) -> list[list[tuple[int, float]]]:
    ids_MK, scores_MK = likeliest_in(logits_MV.shape[1]).run([TOP_IDS, TOP_SCORES], {"x": logits_MV})
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
