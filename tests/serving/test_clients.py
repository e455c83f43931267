"""Clients that people have already, asking this server: what they send is read, what it answers is what they expect."""

import httpx
import numpy as np
import pytest
from huggingface_hub import InferenceClient


@pytest.fixture
def routes(client: httpx.Client) -> dict[str, InferenceClient]:
    """Hugging Face's client, for each route: it posts to just the URL it is given."""
    base = str(client.base_url).rstrip("/")
    return {route: InferenceClient(model=f"{base}/{route}") for route in ("fill-mask", "embed", "classify")}


def test_hugging_faces_client_fills_masks(routes: dict[str, InferenceClient]) -> None:
    candidates = routes["fill-mask"].fill_mask("the [MASK] of", top_k=3)
    assert len(candidates) == 3
    assert 0 < candidates[0].score < 1
    competing = routes["fill-mask"].fill_mask("the [MASK] of", targets=["list", "file"])
    assert {candidate.token_str for candidate in competing} == {"list", "file"}


def test_hugging_faces_client_embeds(routes: dict[str, InferenceClient]) -> None:
    embeddings = routes["embed"].feature_extraction("open the file", normalize=True, truncate=True)
    assert embeddings.shape == (1, 8)
    assert embeddings.dtype == np.float32


def test_hugging_faces_client_classifies(routes: dict[str, InferenceClient]) -> None:
    labels = routes["classify"].text_classification("open the file", top_k=2)
    assert [set(label) for label in labels] == [{"label", "score"}] * 2
    assert labels[0].score > labels[1].score
