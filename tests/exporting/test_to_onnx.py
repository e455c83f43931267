"""Every family leaves training whole, with any head: parity over shapes, padding and length, then INT8.

The configuration registered for a family decides the inputs and outputs of its graph. Attention gives the same answers
before and after it is rewritten, without transpositions, and with one mask row for each query.

B texts, Q queries, K keys, A heads, D dimensions of a head, H = A × D.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import transformers
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from optimum.exporters.tasks import TasksManager
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, BertConfig, MPNetConfig, PretrainedConfig

from clozeline.encoder.families import FAMILIES, LAYOUTS
from clozeline.encoder.families.layout import TokenIds
from clozeline.exporting import to_onnx
from clozeline.exporting.forms import last_layer_of
from clozeline.exporting.graph import drop_unread, op_counts, read_graph, write_graph
from clozeline.exporting.parity import differences_by_output, largest_difference
from clozeline.exporting.quantization import Scheme, quantize
from clozeline.exporting.to_onnx import ATTENTION, configuration_of, export_onnx, head_products, settle_attention
from clozeline.exporting.trained import TrainedModel, open_trained
from clozeline.inference.language import HIDDEN
from clozeline.inference.open_model import MASKS_ONLY, GraphSession, padded
from clozeline.inference.tokenization import TokenizedText
from clozeline.params.model import NOT_EXPORTED
from clozeline.params.reading import read_params
from clozeline.system.errors import ArtifactError

PROJECT = Path(__file__).parents[2]

OPSET = read_params(PROJECT / "params.yaml").export.opset
IDS = TokenIds(vocab_size=90, pad_id=0, cls_id=2, sep_id=3)
SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
LENGTH = 136
"""Longer than any that is compared in every model."""
EXPORTED = [name for name in FAMILIES if name not in NOT_EXPORTED]
CHANGES: dict[str, dict[str, object]] = {
    "albert": {"embedding_size": 16},
    "electra": {"embedding_size": 16},
    "modernbert": {"local_attention": 16, "global_attn_every_n_layers": 2},
}
"""Changes to the configurations for effects that otherwise show only in larger models."""
READ_FIRST = {"albert", "bert", "distilbert", "electra", "modernbert", "roberta", "xlm-roberta"}
"""Their classifiers' heads look at the first position, and their last layers can be computed there alone."""
UNLIKE_OTHERS = {"big_bird", "deberta-v2", "deberta-v3"}
"""Their attention is no operator: transformers writes its products out."""
HEADS = [
    *(AutoModelForMaskedLM, transformers.AutoModelForSequenceClassification),
    *(transformers.AutoModelForTokenClassification, transformers.AutoModelForQuestionAnswering, transformers.AutoModel),
]
KIN = {"xlm-roberta": "roberta", "deberta-v3": "deberta-v2"}
"""Families whose models are those of another family, but for the configuration of the encoder."""
ALL_HEADS = {"bert", "modernbert", "deberta-v2"}
"""Exported under every head: with types; with gates and windows; on transformers' classes."""
ALL_LAYERS = {"bert", "modernbert"}
"""Exported with every layer under every head. In the others a classifier's head sees what comes out of one layer; all
their layers are under the head of `AutoModelForMaskedLM`.
"""


def heads_of(family: str) -> list[type]:
    """The vocabulary heads and those of classifiers differ between families; the other heads are one linear layer."""
    if family in KIN:
        return HEADS[:1]
    return HEADS if family in ALL_HEADS else HEADS[:2]


PAIRS = [(family, head) for family in EXPORTED for head in heads_of(family)]


def small(family: str, objective: str = "mlm", **changes: int) -> PretrainedConfig:
    """Return a small configuration of the family, as `pretrain` makes it."""
    params = read_params(PROJECT / "params.yaml").pretrain.model
    shape = {"family": family, "size": None, "max_position_embeddings": LENGTH, **SHAPE, **changes}
    config = FAMILIES[family].forms[objective].configure(params.model_copy(update=shape), IDS)
    config.update(CHANGES.get(family, {}) | {"num_labels": 3})
    return config


@pytest.fixture(scope="module")
def trained(family: str, head: type, save_trained: object) -> TrainedModel:
    torch.manual_seed(0)
    config = (
        small(family) if family in ALL_LAYERS or head is AutoModelForMaskedLM else small(family, num_hidden_layers=1)
    )
    if head is transformers.AutoModelForQuestionAnswering:
        config.num_labels = 2
    return open_trained(save_trained(head.from_config(config)))


@dataclass(frozen=True)
class Exported:
    path: Path
    graph: ModelProto
    inputs: tuple[str, ...]


@pytest.fixture(scope="module")
def exported(trained: TrainedModel, tmp_path_factory: pytest.TempPathFactory, operators_made_once: None) -> Exported:
    """Export each model once for all tests of it."""
    path = tmp_path_factory.mktemp("exported") / "model.onnx"
    inputs = export_onnx(trained, OPSET, path)
    return Exported(path, read_graph(path), tuple(inputs))


@pytest.mark.parametrize(("family", "head"), PAIRS, scope="module")
def test_the_graph_computes_what_the_model_computes(trained: TrainedModel, exported: Exported) -> None:
    """Batches have 1, 3 and 17 texts of up to 2, 7, 128 and `max_length` tokens; all but the longest are padded."""
    assert largest_difference(trained, exported.path, exported.inputs) < 1e-5


@pytest.mark.parametrize("length", [3, 15])
def test_a_model_with_few_positions_is_traced_with_a_shorter_text(
    length: int, save_trained: object, tmp_path: Path, operators_made_once: None
) -> None:
    config = small("bert", num_hidden_layers=1)
    config.max_position_embeddings = length
    trained = open_trained(save_trained(AutoModelForMaskedLM.from_config(config)))
    inputs = export_onnx(trained, OPSET, tmp_path / "model.onnx")
    assert trained.max_length == length
    assert largest_difference(trained, tmp_path / "model.onnx", tuple(inputs)) < 1e-5


def test_a_family_that_is_only_imported_is_exported_too(
    save_trained: object, tmp_path: Path, operators_made_once: None
) -> None:
    config = MPNetConfig(**SHAPE | {"num_hidden_layers": 1}, vocab_size=90, max_position_embeddings=32, pad_token_id=1)
    trained = open_trained(save_trained(AutoModelForMaskedLM.from_config(config)))
    inputs = export_onnx(trained, OPSET, tmp_path / "model.onnx")
    assert largest_difference(trained, tmp_path / "model.onnx", tuple(inputs)) < 1e-5


@pytest.mark.parametrize(("family", "head"), PAIRS, scope="module")
def test_attention_is_one_operator_in_each_layer(family: str, trained: TrainedModel, exported: Exported) -> None:
    counts = op_counts(exported.graph)
    assert counts[ATTENTION] == (0 if family in UNLIKE_OTHERS else trained.model.config.num_hidden_layers)


@pytest.mark.parametrize(("family", "other"), KIN.items())
def test_a_family_is_traced_like_its_relatives_under_every_head(family: str, other: str) -> None:
    """A model of ours is what its architecture and the shape of its head say; one of transformers is its model_type."""
    own, kin = small(family), small(other)
    assert to_onnx.FAMILIES[own.model_type] == to_onnx.FAMILIES[kin.model_type]
    if own.model_type in LAYOUTS:
        layout, of_kin = LAYOUTS[own.model_type], LAYOUTS[kin.model_type]
        assert layout.architecture(own) == of_kin.architecture(kin)
        assert {kind: row.shape(own) for kind, row in layout.heads.items()} == {
            kind: row.shape(kin) for kind, row in of_kin.heads.items()
        }
    else:
        assert own.model_type == kin.model_type


@pytest.mark.parametrize("head", [transformers.AutoModelForSequenceClassification], scope="module")
@pytest.mark.parametrize("family", sorted(set(EXPORTED) - UNLIKE_OTHERS - set(KIN)), scope="module")
def test_the_last_layer_of_a_classifier_computes_only_what_its_head_reads(
    family: str, trained: TrainedModel, exported: Exported
) -> None:
    is_first = family in READ_FIRST
    assert last_layer_of(trained) == ("first position" if is_first else "every position")
    assert length_of_last_product(trained, exported) == (1 if is_first else 7)


def length_of_last_product(trained: TrainedModel, exported: Exported) -> int:
    """Return the number of positions of the encoder's last matrix product for a text of 7 tokens."""
    products = [node for node in exported.graph.graph.node if node.op_type == "MatMul"]
    product = [node.output[0] for node in products if node.name.startswith("model.encoder.")][-1]
    model = ModelProto()
    model.CopyFrom(exported.graph)
    model.graph.output.append(ValueInfoProto(name=product))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (values_1QH,) = session.run([product], {name: np.ones((1, 7), dtype=np.int64) for name in exported.inputs})
    return int(values_1QH.shape[1])


@pytest.mark.parametrize("head", [AutoModelForMaskedLM], scope="module")
@pytest.mark.parametrize("family", EXPORTED, scope="module")
def test_int8_is_close_to_fp32_with_all_weights_and_the_table_in_8_bits(
    trained: TrainedModel, exported: Exported, tmp_path: Path
) -> None:
    graph, inputs = exported.graph, exported.inputs
    scheme = Scheme(weights="int7", embeddings=True)
    head = head_products(trained, graph)
    quantized = quantize(graph, scheme, exact=head)
    write_graph(quantized.model, tmp_path / "model.int8.onnx")
    differences = differences_by_output(trained, tmp_path / "model.int8.onnx", inputs, batch_sizes=(3,))
    assert differences.pop(HIDDEN) < 0.1  # its values are several times as large as those of the other outputs
    assert max(differences.values()) < 0.05
    assert len(head) == 1
    assert quantized.num_matmuls >= 2 * (4 if trained.family == "modernbert" else 6) + 1
    float_matrices = {tensor.name for tensor in _matrices(quantized.model) if tensor.data_type != TensorProto.INT8}
    readers = [node for node in quantized.model.graph.node if float_matrices & set(node.input)]
    assert not {"MatMul", "Gather"} & {node.op_type for node in readers if node.name not in head}
    assert len([node for node in readers if node.op_type == "Transpose"]) <= len(head)
    # The vocabulary is there once: the head reads the embedding's own tensor.
    assert sum(trained.model.config.vocab_size in t.dims for t in _matrices(quantized.model)) == 1
    assert op_counts(quantized.model)["MatMul"] == op_counts(graph)["MatMul"] - quantized.num_matmuls
    GraphSession(tmp_path / "model.int8.onnx", input_names=inputs, num_threads=1)


@pytest.mark.parametrize("head", [AutoModelForMaskedLM], scope="module")
@pytest.mark.parametrize("family", EXPORTED, scope="module")
def test_the_maximum_length_is_the_one_in_params(trained: TrainedModel) -> None:
    """RoBERTa's position table has rows that no token uses."""
    assert trained.max_length == LENGTH


def test_every_family_that_cannot_be_exported_is_refused_with_the_reason(save_trained: object) -> None:
    assert set(NOT_EXPORTED) <= set(FAMILIES)
    for name in NOT_EXPORTED:
        folder = save_trained(AutoModelForMaskedLM.from_config(small(name)))
        with pytest.raises(ArtifactError, match=f"model_type {name} cannot be exported to ONNX: {NOT_EXPORTED[name]}"):
            open_trained(folder)


@pytest.mark.parametrize("family", NOT_EXPORTED)
def test_every_refused_family_still_cannot_be_exported(
    family: str, save_trained: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When this test fails, the family's row can state that it exports."""
    monkeypatch.setattr("clozeline.exporting.trained.NOT_EXPORTED", {})
    trained = open_trained(save_trained(AutoModelForMaskedLM.from_config(small(family))))
    monkeypatch.setattr(to_onnx, "FAMILIES", {family: False})
    with pytest.raises(RuntimeError, match=r"torch\.export"):
        export_onnx(trained, OPSET, tmp_path / "model.onnx")


def _matrices(model: ModelProto) -> list[TensorProto]:
    return [tensor for tensor in model.graph.initializer if len(tensor.dims) == 2]


@pytest.mark.parametrize("family", ["modernbert", "roberta", "big_bird"])
def test_the_graph_gives_the_predictions_of_the_model(family: str, save_trained: object, tmp_path: Path) -> None:
    torch.manual_seed(0)
    trained = open_trained(save_trained(AutoModelForCausalLM.from_config(small(family, "clm"))))
    assert trained.task == "text-generation"
    path = tmp_path / "model.onnx"
    inputs = tuple(export_onnx(trained, OPSET, path))
    assert largest_difference(trained, path, inputs) < 1e-5
    # The prediction is that of the last token that is no padding, whatever else is in the batch.
    session = GraphSession(path, input_names=inputs, num_threads=1)
    texts = [TokenizedText(np.array(ids), ()) for ids in ([2, 10, 11], [2, 10, 11, 12, 13, 14, 15])]
    (alone_BV,) = session.run(padded(texts, [0], 0), "logits")
    (together_BV,) = session.run(padded(texts, [0, 1], 0), "logits")
    np.testing.assert_allclose(together_BV[0], alone_BV[0], atol=1e-5)
    assert np.abs(together_BV[1] - together_BV[0]).max() > 1e-3


@pytest.mark.parametrize(("family", "length"), [("modernbert", 8192), ("big_bird", 4096)])
def test_the_graph_computes_what_the_model_computes_on_the_longest_row(
    family: str, length: int, save_trained: object, tmp_path: Path
) -> None:
    """Traced on a short one; beside a text of half its length, padded. Weights as after training: attention that is
    nearly a mean would hide a wrong window.
    """
    config = small(family, max_position_embeddings=length, num_attention_heads=1)
    torch.manual_seed(0)
    model = AutoModelForMaskedLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter += torch.randn_like(parameter) * 0.15
    trained = open_trained(save_trained(model))
    assert trained.max_length == length
    path = tmp_path / "model.onnx"
    inputs = tuple(export_onnx(trained, OPSET, path))
    assert largest_difference(trained, path, inputs, batch_sizes=(2,)) <= 1e-4


TEXTS = ["input_ids", "attention_mask"]


class WithoutMask(to_onnx.Configuration):
    @property
    def inputs(self) -> dict[str, dict[int, str]]:
        return {name: axes for name, axes in super().inputs.items() if name != "attention_mask"}


class OfAnotherOutput(to_onnx.Configuration):
    @property
    def outputs(self) -> dict[str, dict[int, str]]:
        return {"tags": {0: "batch"}}


class OfNoExample(to_onnx.Configuration):
    DUMMY_INPUT_GENERATOR_CLASSES = ()


@pytest.fixture(scope="module")
def tagger(small_tagger: Path) -> TrainedModel:
    return open_trained(small_tagger)


@pytest.fixture
def registered(request: pytest.FixtureRequest, tagger: TrainedModel) -> Iterator[None]:
    """Register BERT's taggers as the parameter says, and restore their registration afterwards."""
    register = TasksManager.create_register(to_onnx.BACKEND, overwrite_existing=True)
    register("bert", "token-classification")(request.param)
    yield
    register("bert", "token-classification")(to_onnx.Configuration)


@pytest.mark.parametrize(
    ("registered", "told"),
    [(WithoutMask, "attention_mask"), (OfAnotherOutput, "tags"), (OfNoExample, 'dummy input for "input_ids"')],
    indirect=["registered"],
)
@pytest.mark.usefixtures("registered")
def test_a_broken_registration_fails_the_export(tagger: TrainedModel, told: str, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=told):
        export_onnx(tagger, 23, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_a_family_that_is_not_registered_has_no_configuration() -> None:
    with pytest.raises(KeyError, match="deberta is not supported"):
        configuration_of("deberta", "fill-mask", BertConfig())


@pytest.mark.parametrize(
    ("family", "changes", "inputs"),
    [
        *((family, {}, [*TEXTS, "token_type_ids", MASKS_ONLY]) for family in ("albert", "bert", "electra")),
        *((family, {}, [*TEXTS, MASKS_ONLY]) for family in ("distilbert", "modernbert", "roberta", "xlm-roberta")),
        ("deberta-v2", {"type_vocab_size": 0}, TEXTS),
        ("deberta-v2", {"type_vocab_size": 2}, [*TEXTS, "token_type_ids"]),
        ("big_bird", {}, TEXTS),
        ("mpnet", {}, TEXTS),
    ],
)
def test_a_masked_language_model_has_the_optional_inputs_of_its_family(
    family: str, changes: dict[str, int], inputs: list[str]
) -> None:
    configuration = configuration_of(family, "fill-mask", BertConfig(**changes))
    example = configuration.generate_dummy_inputs(sequence_length=7)
    assert list(configuration.inputs) == list(example) == inputs
    assert {tuple(tensor.shape) for name, tensor in example.items() if name != MASKS_ONLY} == {(2, 7)}


NUM_HEADS, HEAD_SIZE = 3, 8
WIDTH = NUM_HEADS * HEAD_SIZE
NAMES = ("query", "key", "value")
PARTED = np.array([0, 0, NUM_HEADS, HEAD_SIZE], dtype=np.int64)
JOINED = np.array([0, 0, WIDTH], dtype=np.int64)


def node(op_type: str, inputs: str, output: str, **attributes: Any) -> NodeProto:
    return helper.make_node(op_type, inputs.split(), [output], name=output, **attributes)


def apart(name: str, *, is_turned: bool) -> list[NodeProto]:
    """`name_heads` [B, A, X, D]; turned ones are multiplied in between, as by rotary positions."""
    between = [node("Mul", f"{name}_parted wave", f"{name}_turned")] if is_turned else []
    last = f"{name}_turned" if is_turned else f"{name}_parted"
    swap = node("Transpose", last, f"{name}_heads", perm=[0, 2, 1, 3])
    return [node("Reshape", f"{name} parted", f"{name}_parted"), *between, swap]


def attention(name: str, mask: str, query: str = "query") -> NodeProto:
    return node(ATTENTION, f"{query}_heads key_heads value_heads {mask}", name, is_causal=0, qk_matmul_output_mode=0)


TOGETHER = [node("Transpose", "context", "swapped", perm=[0, 2, 1, 3]), node("Reshape", "swapped joined", "y")]


def graph(*nodes: NodeProto, mask: Sequence[str | int] = ("texts", 1, "queries", "keys")) -> ModelProto:
    """From `query` [B, Q, H], `key` and `value` [B, K, H] and `mask`, true where queries may look, to `y` [B, Q, H]."""
    axes = (
        ["texts", "queries", WIDTH],
        ["texts", "keys", WIDTH],
        ["texts", "keys", WIDTH],
    )
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, it) for name, it in zip(NAMES, axes, strict=True)]
    wave = np.random.default_rng(0).normal(size=HEAD_SIZE).astype(np.float32)
    made = helper.make_graph(
        nodes,
        "test",
        [*values, helper.make_tensor_value_info("mask", TensorProto.BOOL, mask)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["texts", "queries", WIDTH])],
        [numpy_helper.from_array(it, name) for name, it in (("parted", PARTED), ("joined", JOINED), ("wave", wave))],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)


def block(*, is_turned: bool = False, **sizes: Any) -> ModelProto:
    parts = [part for name in NAMES for part in apart(name, is_turned=is_turned and name != "value")]
    return graph(*parts, attention("context", "mask"), *TOGETHER, **sizes)


def settled(model: ModelProto) -> ModelProto:
    copy = ModelProto()
    copy.CopyFrom(model)
    settle_attention(copy)
    return copy


def run(model: ModelProto, num_texts: int, queries: int, keys: int, rows: int, output: str = "y") -> np.ndarray:
    random = np.random.default_rng(num_texts)
    inputs = {
        name: random.normal(size=(num_texts, length, WIDTH)).astype(np.float32)
        for name, length in zip(NAMES, (queries, keys, keys), strict=True)
    }
    mask = np.broadcast_to(random.random((num_texts, 1, 1, keys)) < 0.7, (num_texts, 1, rows, keys)).copy()
    mask[..., 0] = True
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    given: np.ndarray = session.run([output], inputs | {"mask": mask})[0]
    return given


SHAPES = [(1, 1, 1), (1, 1, 7), (3, 5, 5), (4, 2, 33)]


@pytest.mark.parametrize("is_turned", [False, True])
def test_attention_without_transposes_gives_the_same_output(is_turned: bool) -> None:
    before = block(is_turned=is_turned)
    after = settled(before)
    assert op_counts(before)["Transpose"] == 4
    assert op_counts(after)["Transpose"] == 0
    for texts, queries, keys in SHAPES:
        shape = (texts, queries, keys, queries)
        np.testing.assert_allclose(run(after, *shape), run(before, *shape), rtol=1e-5, atol=1e-6)


def test_a_one_row_mask_is_expanded_to_a_row_per_query() -> None:
    after = settled(block(mask=("texts", 1, 1, "keys")))
    assert op_counts(after)["Expand"] == 1
    for texts, queries, keys in SHAPES:
        expected = run(block(), texts, queries, keys, queries)
        np.testing.assert_allclose(run(after, texts, queries, keys, 1), expected, rtol=1e-5, atol=1e-6)


def test_layers_with_equally_many_queries_share_the_expanded_mask() -> None:
    parts = [part for name in NAMES for part in apart(name, is_turned=False)]
    swap = node("Transpose", "second", "second_swapped", perm=[0, 2, 1, 3])
    again = [node("Reshape", "swapped joined", "first_joined"), swap, node("Reshape", "second_swapped joined", "other")]
    two = [attention("context", "mask"), attention("second", "mask"), TOGETHER[0], *again]
    model = graph(*parts, *two, node("Add", "first_joined other", "y"), mask=("texts", 1, 1, "keys"))
    assert op_counts(settled(model))[ATTENTION] == 2
    assert op_counts(settled(model))["Expand"] == 1


def test_layers_with_different_numbers_of_queries_have_separate_expanded_masks() -> None:
    """As the last layer has, where it is computed at few positions."""
    parts = [part for name in NAMES for part in apart(name, is_turned=False)]
    swap = node("Transpose", "second", "second_swapped", perm=[0, 2, 1, 3])
    again = [node("Reshape", "swapped joined", "first_joined"), swap, node("Reshape", "second_swapped joined", "other")]
    two = [attention("context", "mask"), attention("second", "mask", query="key"), TOGETHER[0], *again]
    added = [node("ReduceMean", "other", "mean"), node("Add", "first_joined mean", "y")]
    after = settled(graph(*parts, *two, *added, mask=("texts", 1, 1, "keys")))
    assert op_counts(after)["Expand"] == 2
    for texts, queries, keys in SHAPES:
        assert np.isfinite(run(after, texts, queries, keys, 1)).all()


def test_a_mask_with_a_row_per_query_is_not_expanded() -> None:
    assert op_counts(settled(block()))["Expand"] == 0


@pytest.mark.parametrize("what", ["read apart too", "swapped in another way"])
def test_heads_with_other_readers_keep_their_layout(what: str) -> None:
    parts = [part for name in NAMES for part in apart(name, is_turned=False)]
    end = [*TOGETHER[:1], node("Reshape", "swapped joined", "rows"), node("ReduceMax", "context", "most", keepdims=0)]
    if what == "swapped in another way":
        end = [node("Transpose", "context", "swapped", perm=[0, 2, 3, 1]), node("Reshape", "swapped joined", "rows")]
        end.append(node("ReduceMin", "swapped", "most", keepdims=0))
    model = graph(*parts, attention("context", "mask"), *end, node("Add", "rows most", "y"))
    drop_unread(model.graph)
    assert settled(model).SerializeToString(deterministic=True) == model.SerializeToString(deterministic=True)


def test_an_all_padding_text_gives_no_nan() -> None:
    model = settled(block())
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    inputs = {name: np.ones((2, 5, WIDTH), np.float32) for name in NAMES}
    assert np.isfinite(session.run(["y"], inputs | {"mask": np.zeros((2, 1, 5, 5), np.bool_)})[0]).all()
