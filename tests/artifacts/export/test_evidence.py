"""The text of an INT8 scheme uses the words of params.yaml, and different schemes have different texts."""

import pytest

from clozeline.records.package import QuantizationScheme

SCHEME = QuantizationScheme(
    activations="uint8 per token, dynamic",
    weights="int8 per column, symmetric",
    reduce_range=True,
    embeddings="int8 per row, symmetric",
    quantized_matmuls=9,
    quantized_embeddings=1,
    quantized_activations=9,
    exact_matmuls=(),
)


def test_the_description_names_weight_types_as_params_yaml_does() -> None:
    assert "weights int7 per column" in str(SCHEME)
    assert "weights int8 per column" in str(SCHEME.model_copy(update={"reduce_range": False}))


@pytest.mark.parametrize(
    "change",
    [
        {"exact_matmuls": ("/layers.0/mlp",), "quantized_matmuls": 8},
        {"weights": "uint8 per column, around 128", "reduce_range": False},
        {"embeddings": "float32"},
        {"static_activations": ("h",), "static_ratio": 2.4},
    ],
)
def test_different_schemes_have_different_descriptions(change: dict[str, object]) -> None:
    assert str(SCHEME.model_copy(update=change)) != str(SCHEME)


def test_products_kept_in_fp32_are_counted() -> None:
    worst = SCHEME.model_copy(update={"exact_matmuls": ("a", "b"), "quantized_matmuls": 7})
    assert "2 of 9 weight products in fp32" in str(worst)
