"""Requests of Triton's own client other than inference are answered as Triton's documents say."""

from collections.abc import Iterator

import httpx
import numpy as np
import pytest
from tritonclient.http import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException

from clozeline.serving.models.catalogue import Catalogue


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


def test_the_repository_index_lists_every_model(
    triton: InferenceServerClient, catalogue: Catalogue, client: httpx.Client
) -> None:
    told = triton.get_model_repository_index()
    assert [(one["name"], one["version"]) for one in told] == [
        (served.identity.name, served.identity.version) for served in catalogue
    ]
    assert {(one["state"], one["reason"]) for one in told} == {("READY", "")}
    assert client.post("/v2/repository/index", json={"ready": True}).json() == told
    assert client.post("/v2/repository/index", content=b"{").status_code == 400
    assert client.post("/v2/repository/index", json={"redy": True}).status_code == 400


def test_statistics_count_the_answers_of_a_model(triton: InferenceServerClient) -> None:
    def stats() -> dict[str, object]:
        (told,) = triton.get_inference_statistics("names")["model_stats"]
        return told

    before = stats()
    tensor = InferInput("text", [2], "BYTES")
    tensor.set_data_from_numpy(np.array([b"a", b"the list"], dtype=object))
    triton.infer("names", [tensor])
    after = stats()
    assert after["inference_count"] - before["inference_count"] == 2
    were = before["inference_stats"]
    spent = {
        name: (found["count"] - were[name]["count"], found["ns"] - were[name]["ns"])
        for name, found in after["inference_stats"].items()
    }
    assert {count for count, _ in spent.values()} == {1}
    assert spent["compute_infer"][1] > 0
    assert abs(spent["success"][1] - sum(ns for name, (_, ns) in spent.items() if name != "success")) < 1_000
    assert [one["name"] for one in triton.get_inference_statistics()["model_stats"]] == [
        one["name"] for one in triton.get_model_repository_index()
    ]


def test_an_unknown_model_is_refused_in_the_shape_of_the_protocol(triton: InferenceServerClient) -> None:
    for ask in (triton.get_model_config, triton.get_inference_statistics):
        with pytest.raises(InferenceServerException, match="no model of that name is served"):
            ask("gpt")
