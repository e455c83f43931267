"""The server that one writes in an afternoon: FastAPI, and sentence-transformers with an INT8 graph.

`uvicorn --factory comparison.sentence_server:create_app`, told by SENTENCE_MODEL, SENTENCE_FILE and SENTENCE_THREADS
what to serve.
"""

import importlib
import os
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel


class EmbedRequest(BaseModel):
    inputs: list[str]


def create_app() -> FastAPI:
    model = _model(int(os.environ["SENTENCE_THREADS"]))
    app = FastAPI()

    @app.get("/health")
    async def health() -> str:
        return "ready"

    # `async`: in threads, concurrent calls of one tokenizer of transformers fail with "Already borrowed".
    @app.post("/embed")
    async def embed(body: EmbedRequest) -> Response:
        vectors = model.encode(body.inputs, normalize_embeddings=True, show_progress_bar=False)
        return JSONResponse(vectors.tolist())

    return app


def _model(num_threads: int) -> Any:
    import onnxruntime
    import torch

    torch.set_num_threads(num_threads)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads
    settings = {
        "file_name": os.environ["SENTENCE_FILE"],
        "provider": "CPUExecutionProvider",
        "session_options": options,
    }
    model = importlib.import_module("sentence_transformers").SentenceTransformer(
        os.environ["SENTENCE_MODEL"], backend="onnx", model_kwargs=settings
    )
    model.encode(["warm"])
    return model
