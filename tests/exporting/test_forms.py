"""A masked language model's graph computes its last layer at the masks only, if only these are requested.

B texts, L tokens, Q positions that the last layer is computed at, H hidden, V vocabulary.
"""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, ValueInfoProto

from clozeline.exporting.forms import last_layer_of
from clozeline.exporting.graph import read_graph
from clozeline.exporting.to_onnx import export_onnx
from clozeline.exporting.trained import TrainedModel, open_trained
from clozeline.inference.open_model import MASKS_ONLY, GraphSession, TextBatch

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
