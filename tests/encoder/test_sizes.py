import pytest

from clozeline.encoder.architecture import SIZES, Shape, shape_of
from clozeline.language import models
from clozeline.params.model import SIZE_NAMES


def test_the_size_names_are_the_rows_of_the_table_of_sizes() -> None:
    assert list(SIZE_NAMES) == list(SIZES)


def test_the_default_is_the_measured_one(params_of, ids) -> None:
    config = models.build(params_of("modernbert", size="mini", **NO_NUMBERS), "mlm", ids, seed=0).config
    shape = (config.num_hidden_layers, config.hidden_size, config.num_attention_heads, config.intermediate_size)
    assert shape == (2, 96, 2, 192)


NO_NUMBERS = dict.fromkeys(("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"))


@pytest.mark.parametrize("size", SIZES)
def test_a_plain_mlp_is_four_times_as_wide_as_its_layer_and_a_gated_one_narrower(size, params_of) -> None:
    params = params_of("bert", size=size, **NO_NUMBERS)
    plain, gated = shape_of(params, gated=False), shape_of(params, gated=True)
    assert plain.intermediate_size == 4 * plain.hidden_size
    assert gated.hidden_size < gated.intermediate_size < plain.intermediate_size
    assert plain.hidden_size % plain.num_attention_heads == 0
    assert plain.hidden_size // plain.num_attention_heads == (48 if size == "mini" else 64)


@pytest.mark.parametrize(
    ("family", "size", "millions"),
    [
        ("bert", "base", 85.7),
        ("bert", "large", 303.3),
        ("modernbert", "base", 110.3),
        ("modernbert", "large", 343.0),
        ("distilbert", "base", 42.9),
        ("electra", "small", 9.6),
    ],
)
def test_the_named_sizes_are_as_large_as_the_published_models(family, size, millions, params_of, ids) -> None:
    model = meta_model(params_of(family, size=size, max_position_embeddings=512, **NO_NUMBERS), ids)
    layers = [p.numel() for name, p in model.base_model.named_parameters() if "embeddings.tokens" not in name]
    assert sum(layers) / 1e6 == pytest.approx(millions, rel=0.01)


def meta_model(params, ids):
    """Return a model on the meta device, without memory for its weights."""
    import torch

    with torch.device("meta"):
        return models.build(params, "mlm", ids, seed=0)


def test_explicit_numbers_replace_a_named_size(params_of) -> None:
    assert shape_of(params_of("bert"), gated=False) == Shape(2, 32, 2, 48)
    assert shape_of(params_of("bert"), gated=True) == Shape(2, 32, 2, 48)
