"""A published encoder is measured from its config.json alone: its weights are never downloaded."""

from pathlib import Path
from unittest.mock import Mock

import huggingface_hub
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from transformers import BertConfig, DebertaV2Config, GPT2Config, PretrainedConfig, RobertaConfig

from clozeline.encoder.checkpoints import published_config
from clozeline.planning.costs import ParameterCount
from clozeline.planning.serving import of_published, with_half_weights
from clozeline.planning.timing import BATCH_TEXTS, TEXT_TOKENS, GraphFeed, footprint
from clozeline.system.errors import ArtifactError
from tests.make.models import NAME, MovingHub

HEADS = {"num_hidden_layers": 1, "num_attention_heads": 2}
SHAPE = {"vocab_size": 300, "hidden_size": 32, "intermediate_size": 48, **HEADS}


@pytest.mark.parametrize("config", [BertConfig(**SHAPE), RobertaConfig(**SHAPE), DebertaV2Config(**SHAPE)])
def test_the_model_has_the_published_shape_without_any_weights(config: PretrainedConfig, tmp_path: Path) -> None:
    config.save_pretrained(tmp_path)
    model = of_published(str(tmp_path))
    assert model.config.model_type == config.model_type
    assert model.get_input_embeddings().weight.shape == (300, 32)
    assert ParameterCount.of(model).body > 4 * 32 * 32


@pytest.mark.usefixtures("offline_hub")
def test_of_a_name_on_the_hub_only_settings_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    BertConfig(**SHAPE).save_pretrained(tmp_path / "files")
    MovingHub(tmp_path / "cache", tmp_path / "files").answer_in(monkeypatch)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", Mock(wraps=huggingface_hub.hf_hub_download))
    assert published_config(NAME).hidden_size == 32
    asked = [call.args[1] for call in huggingface_hub.hf_hub_download.call_args_list]  # type: ignore[attr-defined]
    assert "config.json" in asked
    assert not [name for name in asked if name.endswith((".safetensors", ".bin"))]


LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}


def test_a_model_that_cannot_be_measured_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clozeline.planning.serving.available_bytes", lambda: 8_000_000_000)
    for config, told in (
        (GPT2Config(n_embd=32, n_layer=1, n_head=2), "cannot be measured: gpt2.*modernbert"),
        (BertConfig(**LARGE), r"335,174,458 parameters\) takes 12 GB"),
    ):
        config.save_pretrained(tmp_path)
        with pytest.raises(ArtifactError, match=f"(?s){told}"):
            of_published(str(tmp_path))


WEIGHT_KN = np.random.default_rng(0).normal(size=(24, 16)).astype(np.float32)
BIAS_N = np.linspace(-1, 1, 16, dtype=np.float32)
ROWS_TK = np.random.default_rng(1).normal(size=(3, 24)).astype(np.float32)


def model_of(nodes: list[onnx.NodeProto], given: onnx.ValueInfoProto, tables: dict[str, np.ndarray]) -> onnx.ModelProto:
    """Return a graph with the output y."""
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    stored = [numpy_helper.from_array(table, name) for name, table in tables.items()]
    graph = helper.make_graph(nodes, "test", [given], [output], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def product(weight_KN: np.ndarray) -> onnx.ModelProto:
    nodes = [helper.make_node("MatMul", ["x", "W"], ["p"]), helper.make_node("Add", ["p", "b"], ["y"])]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 24])
    return model_of(nodes, given, {"W": weight_KN, "b": BIAS_N})


def answer(model: onnx.ModelProto) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": ROWS_TK})[0]


def test_matrices_take_half_the_bytes_and_compute_with_their_rounded_values() -> None:
    model = product(WEIGHT_KN)
    half = with_half_weights(model)
    stored = [numpy_helper.to_array(tensor) for tensor in half.graph.initializer]
    assert [(tensor.dtype, tensor.shape) for tensor in stored] == [(np.float16, (24, 16)), (np.float32, (16,))]
    exact = ROWS_TK @ WEIGHT_KN.astype(np.float16).astype(np.float32) + BIAS_N
    np.testing.assert_allclose(answer(half), exact, atol=1e-5)
    assert np.abs(answer(half) - answer(model)).max() > 0
    assert model.graph.initializer[0].data_type == TensorProto.FLOAT


def test_a_matrix_beyond_the_range_of_float16_stays_float32() -> None:
    model = product(WEIGHT_KN * 1e6)
    np.testing.assert_array_equal(answer(with_half_weights(model)), answer(model))


FEED = GraphFeed(("input_ids",), vocab_size=50, mask_id=4, outputs=("y",))
MIB = 2**20


def lookup_graph(path: Path, num_columns: int) -> Path:
    """Write a graph that looks up rows of a table of 50 rows."""
    nodes = [helper.make_node("Gather", ["E", "input_ids"], ["rows"]), helper.make_node("ReduceMean", ["rows"], ["y"])]
    given = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "length"])
    onnx.save(model_of(nodes, given, {"E": np.ones((50, num_columns), dtype=np.float32)}), path)
    return path


def test_a_larger_graph_takes_more_memory_and_more_time(tmp_path: Path) -> None:
    small, large = (footprint(lookup_graph(tmp_path / f"{size}.onnx", size), FEED) for size in (8, 2**18))
    assert small.memory_bytes is not None
    assert large.memory_bytes is not None
    assert large.memory_bytes - small.memory_bytes > 50 * MIB  # a table of 50 MiB
    assert large.text_milliseconds > 2 * small.text_milliseconds
    assert large.batch_milliseconds > 2 * large.text_milliseconds


def test_every_sample_text_has_one_mask_and_valid_ids() -> None:
    ids_BL = FEED.batch(BATCH_TEXTS).input_ids_BL
    assert ids_BL.shape == (BATCH_TEXTS, TEXT_TOKENS)
    assert ((ids_BL == FEED.mask_id).sum(axis=1) == 1).all()
    assert 0 <= ids_BL.min() < ids_BL.max() < 50
