"""Claim: every row of the table of layouts equals the stock model of its family: outputs, gradients, files.

Shapes: B rows, L tokens.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import AutoConfig

from clozeline.encoder.checkpoints import Checkpoint, opened
from clozeline.encoder.families import FAMILIES, LAYOUTS
from clozeline.encoder.families.layout import HeadKind, class_name_of
from clozeline.encoder.model import EncoderModel
from clozeline.system.errors import ArtifactError

SHAPE = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 48}
# Beyond the window of ModernBERT, 64 tokens to each side; all that these models read.
LENGTH = 150
COMMON = {"vocab_size": 64, "pad_token_id": 0, "num_labels": 5, "initializer_range": 0.3}
OLD = {**COMMON, **SHAPE, "max_position_embeddings": LENGTH}
DISTILBERT = {"dim": 32, "n_layers": 3, "n_heads": 2, "hidden_dim": 48, "max_position_embeddings": LENGTH}
PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "modernbert": ("modernbert", OLD),
    "modernbert, biases everywhere": (
        "modernbert",
        OLD
        | dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"), True)
        | {"decoder_bias": False, "classifier_pooling": "mean", "hidden_activation": "silu"},
    ),
    "modernbert-decoder": ("modernbert-decoder", OLD),
    "bert": ("bert", OLD | {"type_vocab_size": 3, "hidden_act": "gelu_new"}),
    "bert, a decoder": ("bert", OLD | {"is_decoder": True}),
    "roberta": ("roberta", OLD | {"max_position_embeddings": LENGTH + 1, "type_vocab_size": 1}),
    "roberta, padding after words": ("roberta", OLD | {"pad_token_id": 3, "max_position_embeddings": LENGTH + 4}),
    "roberta, a decoder": ("roberta", OLD | {"max_position_embeddings": LENGTH + 1, "is_decoder": True}),
    "xlm-roberta": ("xlm-roberta", OLD | {"max_position_embeddings": LENGTH + 1}),
    "xlm-roberta, a decoder": ("xlm-roberta", OLD | {"max_position_embeddings": LENGTH + 1, "is_decoder": True}),
    "distilbert": ("distilbert", COMMON | DISTILBERT | {"activation": "relu"}),
    "electra": ("electra", OLD | {"embedding_size": 16}),
    "electra, a decoder": ("electra", OLD | {"embedding_size": 32, "is_decoder": True}),
    "albert": ("albert", OLD | {"embedding_size": 16}),
    "albert, in groups": (
        "albert",
        OLD | {"embedding_size": 16, "num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2},
    ),
}
CASES: list[tuple[str, HeadKind]] = [
    (name, kind)
    for name, (model_type, values) in PUBLISHED.items()
    for kind in LAYOUTS[model_type].heads
    if kind not in ("mlm", "clm") or (kind == "clm") == values.get("is_decoder", model_type == "modernbert-decoder")
]
every_row = pytest.mark.parametrize(("name", "kind"), CASES, ids=["-".join(case) for case in CASES])
padded_or_not = pytest.mark.parametrize("is_padded", [False, True], ids=["whole", "padded"])


def configuration(name: str, kind: HeadKind) -> Any:
    model_type, values = PUBLISHED[name]
    return AutoConfig.for_model(model_type, **values | ({"num_labels": 2} if kind == "question-answering" else {}))


def both(name: str, kind: HeadKind) -> tuple[Any, EncoderModel]:
    """Return a stock model with random weights in every parameter, and our model with the same weights."""
    config = configuration(name, kind)
    torch.manual_seed(0)
    stock = getattr(transformers, class_name_of(type(config), kind))
    # In float64: ModernBERT's eager attention uses float32; old decoders' fused one has no mask.
    attention = "sdpa" if config.model_type.startswith("modernbert") else "eager"
    theirs = stock._from_config(config, attn_implementation=attention).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter += torch.randn_like(parameter) * 0.05
    ours, missing = EncoderModel.loaded(config, kind, theirs.state_dict())
    assert missing == []
    return theirs, ours.eval()


def rows(config: Any, *, is_padded: bool) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(1)
    input_ids_BL = torch.randint(4, 64, (3, LENGTH), generator=draw)
    if not is_padded:
        return {"input_ids": input_ids_BL}
    lengths_B1 = torch.tensor([[LENGTH], [LENGTH - 7], [9]])
    mask_BL = (torch.arange(LENGTH) < lengths_B1).long()
    given = {"input_ids": input_ids_BL.where(mask_BL.bool(), config.pad_token_id), "attention_mask": mask_BL}
    num_types = getattr(config, "type_vocab_size", 0) if config.model_type != "distilbert" else 0
    if num_types > 1:
        given["token_type_ids"] = torch.randint(num_types, input_ids_BL.shape, generator=draw) * mask_BL
    return given


def said_by(model: nn.Module, kind: HeadKind, given: dict[str, Tensor]) -> Tensor:
    """Return the outputs for the real tokens, or for the texts."""
    if kind == "feature-extraction":
        said = (model.encoder if isinstance(model, EncoderModel) else model)(**given).last_hidden_state
    else:
        output = model(**given)
        ends = [getattr(output, name) for name in ("start_logits", "end_logits") if hasattr(output, name)]
        said = torch.stack(ends, dim=-1) if ends else output.logits
    is_of_tokens = said.shape[:2] == given["input_ids"].shape
    return said[given["attention_mask"].bool()] if is_of_tokens and "attention_mask" in given else said


def largest(value: Tensor) -> float:
    return float(value.detach().abs().max())


def assert_alike(ours: Any, theirs: Any, kind: HeadKind, given: dict[str, Tensor], tolerance: float) -> None:
    expected = said_by(theirs, kind, given)
    assert largest(said_by(ours, kind, given) - expected) <= tolerance * largest(expected)


@padded_or_not
@every_row
def test_outputs_and_gradients_equal_those_of_the_stock_model(name, kind, is_padded) -> None:
    theirs, ours = both(name, kind)
    given = rows(theirs.config, is_padded=is_padded)
    with torch.inference_mode():
        assert_alike(ours, theirs, kind, given, 1e-4)
    said, expected = (said_by(model.double(), kind, given) for model in (ours, theirs))
    assert largest(said - expected) <= 1e-9 * largest(expected)

    weight = torch.randn(expected.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    (said * weight).sum().backward()
    (expected * weight).sum().backward()
    theirs_named = {name: it.grad for name, it in theirs.named_parameters(remove_duplicate=False)}
    published = ours.layout.published(dict(ours.named_parameters()), ours.config, kind)
    scale = max(largest(gradient) for gradient in theirs_named.values() if gradient is not None)
    for name, parameter in ours.named_parameters():
        expected_gradient = theirs_named[published[name]]
        if parameter.grad is None or expected_gradient is None:
            assert parameter.grad is expected_gradient is None, name
        else:
            assert largest(parameter.grad - expected_gradient) <= 1e-9 * scale, name


def assert_saved_model_is_alike(ours: EncoderModel, kind: HeadKind, folder: Path) -> None:
    """Assert that the model, once saved, gives the same outputs in the stock class and in ours."""
    ours.eval().save(folder)
    stock = getattr(transformers, class_name_of(type(ours.config), kind))
    again, report = stock.from_pretrained(folder, local_files_only=True, output_loading_info=True)
    assert not any(report[problem] for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    checkpoint = Checkpoint(str(folder))
    opened_again, missing = opened(checkpoint, checkpoint.config(), kind)
    assert missing == []
    given = rows(ours.config, is_padded=True)
    with torch.inference_mode():
        assert_alike(again.eval(), ours, kind, given, 1e-4)
        assert_alike(opened_again.eval(), ours, kind, given, 0.0)


@every_row
def test_a_saved_model_loads_in_the_stock_class_and_in_ours(name, kind, tmp_path: Path) -> None:
    assert_saved_model_is_alike(both(name, kind)[1], kind, tmp_path)


@pytest.mark.parametrize("name", PUBLISHED)
@torch.inference_mode()
def test_a_padding_token_inside_a_text_shifts_positions_as_in_the_stock_model(name) -> None:
    """RoBERTa counts positions by real tokens alone, whatever the mask says."""
    theirs, ours = both(name, "feature-extraction")
    given = rows(theirs.config, is_padded=False)
    given["input_ids"][:, [5, 17]] = theirs.config.pad_token_id
    assert_alike(ours.double(), theirs.double(), "feature-extraction", given, 1e-9)


@pytest.mark.parametrize("name", ["bert", "roberta", "xlm-roberta", "albert", "distilbert", "electra", "modernbert"])
def test_an_untied_output_layer_keeps_its_bias_in_the_stock_class_and_ours(name, tmp_path) -> None:
    """Transformers 5 reads that bias by one of two names, else draws it at random."""
    config = configuration(name, "mlm")
    config.tie_word_embeddings = False
    ours = EncoderModel(config, "mlm")
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter += torch.randn_like(parameter) * 0.05
    assert_saved_model_is_alike(ours, "mlm", tmp_path)


@every_row
def test_initial_weights_have_the_standard_deviations_of_the_stock_model(name, kind) -> None:
    """Not equal numbers, but equal deviations of matrices, zeros and ones."""
    config = configuration(name, kind)
    config.update({"hidden_size": 256, "intermediate_size": 512, "vocab_size": 2000, "initializer_range": 0.02})
    torch.manual_seed(0)
    theirs = getattr(transformers, class_name_of(type(config), kind))(config)
    ours = EncoderModel(config, kind)
    named = dict(theirs.named_parameters(remove_duplicate=False))
    published = ours.layout.published(dict(ours.named_parameters()), config, kind)
    for name, parameter in ours.named_parameters():
        expected = named[published[name]]
        if parameter.ndim == 1:
            assert torch.equal(parameter, expected), name
        else:
            tolerance = 6 / parameter.numel() ** 0.5
            assert parameter.std().item() == pytest.approx(expected.std().item(), rel=tolerance), name
            assert ((parameter == 0).all(dim=1) == (expected == 0).all(dim=1)).all(), name


YARN = {"full_attention": {"rope_type": "yarn", "rope_theta": 1e4}, "sliding_attention": {"rope_theta": 1e4}}
NOT_COVERED = [
    ("bert", {"position_embedding_type": "relative_key"}, "`position_embedding_type`: relative_key"),
    ("bert", {"is_decoder": True, "add_cross_attention": True}, "`add_cross_attention`: True"),
    ("distilbert", {"activation": "no_such_activation"}, "`activation`: no_such_activation"),
    ("modernbert", {"rope_parameters": YARN}, "`rope_parameters`"),
    ("modernbert", {"layer_types": ["full_attention", "chunked_attention"] * 11}, "`layer_types`: chunked_attention"),
    ("modernbert", {"head_dim": 32}, "`head_dim`: 32"),
]


@pytest.mark.parametrize(("model_type", "values", "told"), NOT_COVERED)
def test_a_configuration_that_our_layers_do_not_cover_is_refused_by_name(model_type, values, told) -> None:
    config = AutoConfig.for_model(model_type)
    config.update(values)
    with pytest.raises(ArtifactError, match=told):
        EncoderModel(config, "mlm")


def test_only_families_with_special_attention_train_on_stock_layers() -> None:
    types = {name: {form.model_type for form in row.forms.values()} for name, row in FAMILIES.items()}
    stock = {name for name, of_family in types.items() if not of_family <= LAYOUTS.keys()}
    assert stock == {"deberta-v2", "deberta-v3", "longformer", "big_bird"}
    every_head = {(model_type, kind) for model_type, layout in LAYOUTS.items() for kind in layout.heads}
    assert {(PUBLISHED[name][0], kind) for name, kind in CASES} == every_head, "every head of a layout is compared"
