"""All protocols of the server. To add one, write a file with a `Dialect` and list it here."""

from typing import Final

from clozeline.serving.protocols.dialects import HOUSE_WORDS, Dialect, Dialects
from clozeline.serving.protocols.embeddings_inference import EMBEDDINGS_INFERENCE
from clozeline.serving.protocols.house.answer import ANSWER
from clozeline.serving.protocols.house.classify import CLASSIFY
from clozeline.serving.protocols.house.complete import COMPLETE
from clozeline.serving.protocols.house.feedback import FEEDBACK
from clozeline.serving.protocols.house.fill_mask import FILL_MASK
from clozeline.serving.protocols.house.status import OPERATIONS
from clozeline.serving.protocols.house.tag import TAG
from clozeline.serving.protocols.house.zero_shot import ZERO_SHOT
from clozeline.serving.protocols.huggingface import HUGGING_FACE
from clozeline.serving.protocols.inference_protocol import INFERENCE_PROTOCOL
from clozeline.serving.protocols.mlflow import MLFLOW
from clozeline.serving.protocols.openai import OPENAI
from clozeline.serving.protocols.triton import TRITON

HOUSE = Dialect(HOUSE_WORDS, (FILL_MASK, COMPLETE, CLASSIFY, TAG, ANSWER, ZERO_SHOT, FEEDBACK, *OPERATIONS))
DIALECTS: Final = Dialects((HOUSE, EMBEDDINGS_INFERENCE, OPENAI, HUGGING_FACE, INFERENCE_PROTOCOL, TRITON, MLFLOW))
