"""Requests of Triton's own client other than inference are answered as Triton's documents say."""

from collections.abc import Iterator

import httpx
import pytest
from tritonclient.http import InferenceServerClient
from tritonclient.utils import InferenceServerException


@pytest.fixture(scope="module")
def triton(client: httpx.Client) -> Iterator[InferenceServerClient]:
    with InferenceServerClient(f"{client.base_url.host}:{client.base_url.port}") as triton:
        yield triton


def test_the_triton_configuration_lists_the_tensors_of_the_model(triton: InferenceServerClient) -> None:
    told = triton.get_model_config("encoder")
    assert (told["name"], told["platform"], told["backend"]) == ("encoder", "onnxruntime_onnx", "onnxruntime")
    assert told["max_batch_size"] == 0
    assert told["input"] == [{"name": "text", "data_type": "TYPE_STRING", "dims": [-1]}]
    assert told["output"][0] == {"name": "embedding", "data_type": "TYPE_FP32", "dims": [-1, 8]}
    assert {output["data_type"] for output in triton.get_model_config("reader")["output"]} == {
        "TYPE_STRING",
        "TYPE_FP32",
        "TYPE_INT64",
    }
    (version,) = triton.get_model_metadata("encoder")["versions"]
    assert triton.get_model_config("encoder", version) == told


def test_an_unknown_model_is_refused_in_the_shape_of_the_protocol(triton: InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="no model of that name is served"):
        triton.get_model_config("gpt")
