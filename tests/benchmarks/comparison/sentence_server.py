"""The usual hand-written server: FastAPI, and sentence-transformers with an INT8 graph.

`uvicorn --factory comparison.sentence_server:create_app`, told by SENTENCE_MODEL, SENTENCE_FILE and SENTENCE_THREADS
what to serve.
"""

import os
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel

from comparison.stock_onnx import OnnxEmbedder


class EmbedRequest(BaseModel):
    inputs: list[str]


def create_app() -> FastAPI:
    model = Path(os.environ["SENTENCE_MODEL"])
    embedder = OnnxEmbedder(model, os.environ["SENTENCE_FILE"], int(os.environ["SENTENCE_THREADS"]))
    embedder(["warm"])
    app = FastAPI()

    @app.get("/health")
    async def health() -> str:
        return "ready"

    # `async`: in threads, concurrent calls of one tokenizer of transformers fail with "Already borrowed".
    @app.post("/embed")
    async def embed(body: EmbedRequest) -> Response:
        return JSONResponse(embedder(body.inputs).tolist())

    return app
