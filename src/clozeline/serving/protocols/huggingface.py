"""Hugging Face's pipelines: `{"inputs", "parameters"}`, as `huggingface_hub.InferenceClient` posts it to a URL.

Requests and answers are those of other paths. Labels come nested here, a list for each text; /predict has them flat.
"""

from dataclasses import replace

from clozeline.serving.protocols.dialects import Dialect
from clozeline.serving.protocols.embeddings_inference import EMBED, HUGGING_FACE_WORDS, SIMILARITY
from clozeline.serving.protocols.house.answer import ANSWER
from clozeline.serving.protocols.house.classify import CLASSIFY
from clozeline.serving.protocols.house.complete import COMPLETE
from clozeline.serving.protocols.house.fill_mask import FILL_MASK
from clozeline.serving.protocols.house.tag import TAG
from clozeline.serving.protocols.house.zero_shot import ZERO_SHOT, ZeroShotLists, zero_shot_lists
from clozeline.serving.protocols.operation import Operation


def _pipeline(task: str, asked: Operation) -> Operation:
    return replace(asked, path=f"/pipeline/{task}", name=task.replace("-", "_"))


HUGGING_FACE = Dialect(
    HUGGING_FACE_WORDS,
    (
        _pipeline("fill-mask", FILL_MASK),
        _pipeline("text-generation", COMPLETE),
        _pipeline("feature-extraction", EMBED),
        _pipeline("text-classification", CLASSIFY),
        _pipeline("token-classification", TAG),
        replace(
            _pipeline("question-answering", ANSWER),
            result_description="The best answer, or a list if `top_k` is above 1",
        ),
        _pipeline("sentence-similarity", SIMILARITY),
        _pipeline("zero-shot-classification", ZERO_SHOT),
        replace(
            _pipeline("zero-shot-classification-lists", ZERO_SHOT),
            answer=zero_shot_lists,
            name="zero_shot_lists",
            summary="Zero-shot classification, in the form that huggingface_hub before 1.0 reads",
            result_description="The labels, best first, and their probabilities",
            result=ZeroShotLists,
        ),
    ),
    tag="Hugging Face",
)
