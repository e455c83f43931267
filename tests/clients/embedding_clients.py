"""Clients by which vector stores and chains get embeddings (docs/clients.md): OpenAI's API and that of
text-embeddings-inference.
"""

from collections.abc import Callable, Sequence

import chromadb
import httpx
import pytest
from chromadb.utils.embedding_functions import HuggingFaceEmbeddingServer
from langchain_openai import OpenAIEmbeddings
from llama_index.embeddings.openai import OpenAIEmbedding
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

TEXTS = ["Sort a list.", "Open a file."]
Vectors = Sequence[Sequence[float]]


def by_llama_index(url: str) -> Vectors:
    return TextEmbeddingsInference(model_name="encoder", base_url=url).get_text_embedding_batch(TEXTS)


def by_llama_index_openai(url: str) -> Vectors:
    client = OpenAIEmbedding(model_name="encoder", api_base=f"{url}/v1", api_key="none")
    return client.get_text_embedding_batch(TEXTS)


def by_chroma(url: str) -> Vectors:
    return HuggingFaceEmbeddingServer(url=f"{url}/embed")(TEXTS)


def by_langchain(url: str) -> Vectors:
    client = OpenAIEmbeddings(model="encoder", base_url=f"{url}/v1", api_key="none", check_embedding_ctx_length=False)
    return client.embed_documents(TEXTS)


@pytest.mark.parametrize("ask", [by_llama_index, by_llama_index_openai, by_chroma, by_langchain])
def test_each_client_gets_the_vectors_of_its_texts(client: httpx.Client, ask: Callable[[str], Vectors]) -> None:
    expected = client.post("/embed", json={"inputs": TEXTS, "model": "encoder"}).json()
    for vector, of_text in zip(ask(str(client.base_url).rstrip("/")), expected, strict=True):
        assert list(vector) == pytest.approx(of_text, abs=1e-6)


def test_a_collection_of_chroma_finds_a_text(client: httpx.Client) -> None:
    embed = HuggingFaceEmbeddingServer(url=str(client.base_url.join("/embed")))
    store = chromadb.EphemeralClient(chromadb.Settings(anonymized_telemetry=False))
    collection = store.create_collection("texts", embedding_function=embed)
    collection.add(ids=["sort", "open"], documents=TEXTS)
    assert collection.query(query_texts=TEXTS[1:], n_results=1)["ids"] == [["open"]]
