"""Every family leaves training whole, with any head: parity over shapes, padding and length, then INT8.

The configuration registered for a family decides the inputs and outputs of its graph. Attention gives the same answers
before and after it is rewritten, without transpositions, and with one mask row for each query.

B texts, Q queries, K keys, A heads, D dimensions of a head, H = A × D.
"""

from collections.abc import Callable, Sequence
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
from tests.make.models import PROJECT, SHAPE, SaveTrained

OPSET = read_params(PROJECT / "params.yaml").export.opset
IDS = TokenIds(vocab_size=90, pad_id=0, cls_id=2, sep_id=3)
# Longer than any that is compared in every model.
LENGTH = 136
EXPORTED = [name for name in FAMILIES if name not in NOT_EXPORTED]
# Changes to the configurations for effects that otherwise show only in larger models.
CHANGES: dict[str, dict[str, object]] = {
    "albert": {"embedding_size": 16},
    "electra": {"embedding_size": 16},
    "modernbert": {"local_attention": 16, "global_attn_every_n_layers": 2},
}
# Their classifiers' heads look at the first position, and their last layers can be computed there alone.
READ_FIRST = {"albert", "bert", "distilbert", "electra", "modernbert", "roberta", "xlm-roberta"}
# Their attention is no operator: transformers writes its products out.
UNLIKE_OTHERS = {"big_bird", "deberta-v2", "deberta-v3"}
CLASSIFIER = transformers.AutoModelForSequenceClassification
HEADS = [
    *(AutoModelForMaskedLM, CLASSIFIER, transformers.AutoModelForTokenClassification),
    *(transformers.AutoModelForQuestionAnswering, transformers.AutoModel),
]
# Families whose models are those of another family, but for the configuration of the encoder.
KIN = {"xlm-roberta": "roberta", "deberta-v3": "deberta-v2"}
# Exported under every head: with types; with gates and windows; on transformers' classes.
ALL_HEADS = {"bert", "modernbert", "deberta-v2"}
# Exported with every layer under every head. In the others a classifier's head sees what comes out of one layer; all
# their layers are under the head of `AutoModelForMaskedLM`.
ALL_LAYERS = {"bert", "modernbert"}


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
    config = FAMILIES[family].configure(objective, params.model_copy(update=shape), IDS)
    config.update(CHANGES.get(family, {}) | {"num_labels": 3})
    return config


@dataclass(frozen=True)
class Exported:
    trained: TrainedModel
    path: Path
    inputs: tuple[str, ...]

    @property
    def graph(self) -> ModelProto:
        return read_graph(self.path)

    def difference(self, **how: Any) -> float:
        return largest_difference(self.trained, self.path, self.inputs, **how)


Export = Callable[[Any], Exported]


@pytest.fixture(scope="module")
def export(save_trained: SaveTrained, tmp_path_factory: pytest.TempPathFactory, operators_made_once: None) -> Export:
    """`export(model)` saves, opens and exports a model of transformers."""

    def run(model: Any) -> Exported:
        trained, path = open_trained(save_trained(model)), tmp_path_factory.mktemp("exported") / "model.onnx"
        return Exported(trained, path, tuple(export_onnx(trained, OPSET, path)))

    return run


@pytest.fixture(scope="module")
def exported(family: str, head: Any, export: Export) -> Exported:
    """Export each model once for all tests of it."""
    torch.manual_seed(0)
    has_all_layers = family in ALL_LAYERS or head is AutoModelForMaskedLM
    config = small(family) if has_all_layers else small(family, num_hidden_layers=1)
    if head is transformers.AutoModelForQuestionAnswering:
        config.num_labels = 2
    return export(head.from_config(config))


@pytest.mark.parametrize(("family", "head"), PAIRS, scope="module")
def test_the_graph_computes_what_the_model_computes(family: str, exported: Exported) -> None:
    """Batches have 1, 3 and 17 texts of up to 2, 7, 128 and `max_length` tokens; all but the longest are padded."""
    assert exported.difference() < 1e-5
    trained = exported.trained
    assert trained.max_length == LENGTH, "RoBERTa's position table has rows that no token uses"
    num_operators = 0 if family in UNLIKE_OTHERS else trained.model.config.num_hidden_layers
    assert op_counts(exported.graph)[ATTENTION] == num_operators


ONE_LAYER = SHAPE | {"num_hidden_layers": 1}


@pytest.mark.parametrize(
    ("config", "max_length"),
    [
        *((BertConfig(**ONE_LAYER, vocab_size=90, max_position_embeddings=few), few) for few in (3, 15)),
        (MPNetConfig(**ONE_LAYER, vocab_size=90, max_position_embeddings=32, pad_token_id=1), 30),
    ],
)
def test_models_with_few_positions_and_of_a_family_that_is_only_imported_are_exported_too(
    config: PretrainedConfig, max_length: int, export: Export
) -> None:
    exported = export(AutoModelForMaskedLM.from_config(config))
    assert exported.trained.max_length == max_length
    assert exported.difference() < 1e-5


@pytest.mark.parametrize(("family", "other"), KIN.items())
def test_a_family_is_traced_like_its_relatives_under_every_head(family: str, other: str) -> None:
    """A model of ours is what its architecture and the shape of its head say; one of transformers is its model_type."""
    own, kin = small(family), small(other)
    assert to_onnx.FAMILIES[own.model_type] == to_onnx.FAMILIES[kin.model_type]
    if own.model_type in LAYOUTS:
        layout, of_kin = LAYOUTS[own.model_type], LAYOUTS[kin.model_type]
        assert layout.architecture(own) == of_kin.architecture(kin)
        for kind, row in layout.heads.items():
            assert row.shape(own) == of_kin.heads[kind].shape(kin)
    else:
        assert own.model_type == kin.model_type


@pytest.mark.parametrize("head", [CLASSIFIER], scope="module")
@pytest.mark.parametrize("family", sorted(set(EXPORTED) - UNLIKE_OTHERS - set(KIN)), scope="module")
def test_the_last_layer_of_a_classifier_computes_only_what_its_head_reads(family: str, exported: Exported) -> None:
    is_first = family in READ_FIRST
    assert last_layer_of(exported.trained) == ("first position" if is_first else "every position")
    model = exported.graph
    products = [node for node in model.graph.node if node.op_type == "MatMul"]
    product = [node.output[0] for node in products if node.name.startswith("model.encoder.")][-1]
    model.graph.output.append(ValueInfoProto(name=product))
    (values_1QH,) = session(model).run([product], {name: np.ones((1, 7), dtype=np.int64) for name in exported.inputs})
    assert values_1QH.shape[1] == (1 if is_first else 7), "positions of the encoder's last product for 7 tokens"


def session(model: ModelProto) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("head", [AutoModelForMaskedLM], scope="module")
@pytest.mark.parametrize("family", EXPORTED, scope="module")
def test_int8_is_close_to_fp32_with_all_weights_and_the_table_in_8_bits(exported: Exported, tmp_path: Path) -> None:
    trained, graph, inputs = exported.trained, exported.graph, exported.inputs
    head = head_products(trained, graph)
    quantized = quantize(graph, Scheme(weights="int7", embeddings=True), exact=head)
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


def test_every_family_that_cannot_be_exported_is_refused_with_the_reason(
    save_trained: SaveTrained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the export of one succeeds here, the family's row can state that it exports."""
    assert set(NOT_EXPORTED) <= set(FAMILIES)
    for family in NOT_EXPORTED:
        folder = save_trained(AutoModelForMaskedLM.from_config(small(family)))
        with pytest.raises(ArtifactError, match=f"model_type {family} cannot be exported to ONNX"):
            open_trained(folder)
        with monkeypatch.context() as patched:
            patched.setattr("clozeline.exporting.trained.NOT_EXPORTED", {})
            patched.setattr(to_onnx, "FAMILIES", {family: False})
            with pytest.raises(RuntimeError, match=r"torch\.export"):
                export_onnx(open_trained(folder), OPSET, tmp_path / "model.onnx")


def _matrices(model: ModelProto) -> list[TensorProto]:
    return [tensor for tensor in model.graph.initializer if len(tensor.dims) == 2]


@pytest.mark.parametrize("family", ["modernbert", "roberta", "big_bird"])
def test_the_graph_gives_the_predictions_of_the_model(family: str, export: Export) -> None:
    torch.manual_seed(0)
    exported = export(AutoModelForCausalLM.from_config(small(family, "clm")))
    assert exported.trained.task == "text-generation"
    assert exported.difference() < 1e-5
    # The prediction is that of the last token that is no padding, whatever else is in the batch.
    opened = GraphSession(exported.path, input_names=exported.inputs, num_threads=1)
    texts = [TokenizedText(np.array(ids), ()) for ids in ([2, 10, 11], [2, 10, 11, 12, 13, 14, 15])]
    (alone_BV,) = opened.run(padded(texts, [0], 0), "logits")
    (together_BV,) = opened.run(padded(texts, [0, 1], 0), "logits")
    np.testing.assert_allclose(together_BV[0], alone_BV[0], atol=1e-5)
    assert np.abs(together_BV[1] - together_BV[0]).max() > 1e-3


@pytest.mark.parametrize(("family", "length"), [("modernbert", 4096), ("big_bird", 2048)])
def test_the_graph_computes_what_the_model_computes_on_the_longest_row(
    family: str, length: int, export: Export
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
    exported = export(model)
    assert exported.trained.max_length == length
    assert exported.difference(batch_sizes=(2,)) <= 1e-4


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


@pytest.mark.parametrize(
    ("configuration", "told"),
    [(WithoutMask, "attention_mask"), (OfAnotherOutput, "tags"), (OfNoExample, 'dummy input for "input_ids"')],
)
def test_a_broken_registration_fails_the_export(
    configuration: type, told: str, small_tagger: Path, tmp_path: Path
) -> None:
    register = TasksManager.create_register(to_onnx.BACKEND, overwrite_existing=True)
    register("bert", "token-classification")(configuration)
    try:
        with pytest.raises(RuntimeError, match=told):
            export_onnx(open_trained(small_tagger), 23, tmp_path / "model.onnx")
    finally:
        register("bert", "token-classification")(to_onnx.Configuration)
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


APART = [part for name in NAMES for part in apart(name, is_turned=False)]
TOGETHER = [node("Transpose", "context", "swapped", perm=[0, 2, 1, 3]), node("Reshape", "swapped joined", "y")]


def graph(*nodes: NodeProto, mask: Sequence[str | int] = ("texts", 1, "queries", "keys")) -> ModelProto:
    """From `query` [B, Q, H], `key` and `value` [B, K, H] and `mask`, true where queries may look, to `y` [B, Q, H]."""
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["texts", axis, WIDTH])
        for name, axis in zip(NAMES, ("queries", "keys", "keys"), strict=True)
    ]
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


def run(model: ModelProto, num_texts: int, queries: int, keys: int, rows: int) -> np.ndarray:
    random = np.random.default_rng(num_texts)
    inputs = {
        name: random.normal(size=(num_texts, length, WIDTH)).astype(np.float32)
        for name, length in zip(NAMES, (queries, keys, keys), strict=True)
    }
    mask = np.broadcast_to(random.random((num_texts, 1, 1, keys)) < 0.7, (num_texts, 1, rows, keys)).copy()
    mask[..., 0] = True
    given: np.ndarray = session(model).run(["y"], inputs | {"mask": mask})[0]
    return given


SHAPES = [(1, 1, 1), (1, 1, 7), (3, 5, 5), (4, 2, 33)]


@pytest.mark.parametrize("is_turned", [False, True])
def test_attention_without_transposes_gives_the_same_output(is_turned: bool) -> None:
    before = block(is_turned=is_turned)
    after = settled(before)
    assert (op_counts(before)["Transpose"], op_counts(after)["Transpose"], op_counts(after)["Expand"]) == (4, 0, 0)
    for texts, queries, keys in SHAPES:
        shape = (texts, queries, keys, queries)
        np.testing.assert_allclose(run(after, *shape), run(before, *shape), rtol=1e-5, atol=1e-6)


def test_a_one_row_mask_is_expanded_to_a_row_per_query() -> None:
    after = settled(block(mask=("texts", 1, 1, "keys")))
    assert op_counts(after)["Expand"] == 1
    for texts, queries, keys in SHAPES:
        expected = run(block(), texts, queries, keys, queries)
        np.testing.assert_allclose(run(after, texts, queries, keys, 1), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("query", "num_expanded"), [("query", 1), ("key", 2)])
def test_layers_with_equally_many_queries_share_the_expanded_mask(query: str, num_expanded: int) -> None:
    """The last layer has fewer, where it is computed at few positions."""
    two = [attention("context", "mask"), attention("second", "mask", query=query), TOGETHER[0]]
    swap = node("Transpose", "second", "second_swapped", perm=[0, 2, 1, 3])
    again = [node("Reshape", "swapped joined", "first_joined"), swap, node("Reshape", "second_swapped joined", "other")]
    added = [node("ReduceMean", "other", "mean"), node("Add", "first_joined mean", "y")]
    after = settled(graph(*APART, *two, *again, *added, mask=("texts", 1, 1, "keys")))
    assert (op_counts(after)[ATTENTION], op_counts(after)["Expand"]) == (2, num_expanded)
    for texts, queries, keys in SHAPES:
        assert np.isfinite(run(after, texts, queries, keys, 1)).all()


@pytest.mark.parametrize(
    "end",
    [
        [TOGETHER[0], node("ReduceMax", "context", "most", keepdims=0)],
        [node("Transpose", "context", "swapped", perm=[0, 2, 3, 1]), node("ReduceMin", "swapped", "most", keepdims=0)],
    ],
    ids=["read apart too", "swapped in another way"],
)
def test_heads_with_other_readers_keep_their_layout(end: list[NodeProto]) -> None:
    rows = [node("Reshape", "swapped joined", "rows"), node("Add", "rows most", "y")]
    model = graph(*APART, attention("context", "mask"), *end, *rows)
    drop_unread(model.graph)
    assert settled(model).SerializeToString(deterministic=True) == model.SerializeToString(deterministic=True)


def test_an_all_padding_text_gives_no_nan() -> None:
    inputs = {name: np.ones((2, 5, WIDTH), np.float32) for name in NAMES} | {"mask": np.zeros((2, 1, 5, 5), np.bool_)}
    assert np.isfinite(session(settled(block())).run(["y"], inputs)[0]).all()
