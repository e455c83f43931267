"""What models that point into a text give in the Open Inference Protocol.

N texts, or questions with their contexts, K answers: `entities` is [N, 1], all others are [N, K].
"""

from collections.abc import Sequence

import numpy as np
import orjson

from clozeline.inference.answerer import Answer
from clozeline.serving.errors import problem
from clozeline.serving.limits import MAX_ANSWER_CHARACTERS
from clozeline.serving.models.service import Service
from clozeline.serving.protocols.named_outputs import Answered, Asked, pairs_of

_NONE = Answer("", 0.0, 0, 0)
"""Where a context has fewer answers than another of the same request."""


async def found_entities(service: Service, asked: Asked) -> Answered:
    """The entities of each text as a list in JSON: a tensor has no room for more of them here than there."""
    served = service.catalogue.tagger(asked.model)
    texts, wanted = asked.inputs["text"], asked.parameters
    reply = await service.asking.ask(
        asked.request,
        served,
        texts,
        lambda: served.model.tagging(texts, overlap=wanted.stride),
        asked.timeout_milliseconds,
    )
    found = await service.asking.finished(
        reply,
        lambda: served.model.entities(texts, reply.answers, strategy=wanted.aggregation_strategy),
        sum(map(len, texts)),
    )
    service.metrics.confident(asked.model, (entity.score for of_text in found for entity in of_text))
    return {"entities": [[orjson.dumps(of_text).decode()] for of_text in found]}, reply.headers


async def found_answers(service: Service, asked: Asked) -> Answered:
    """The best answers to each question, best first."""
    served = service.catalogue.answerer(asked.model)
    pairs, wanted = pairs_of(asked.inputs, "question", "context"), asked.parameters
    search, reading = wanted.spans(wanted.top_k or 1), wanted.reading()
    check_answer_size(search.top_k, asked.inputs["context"], "parameters.top_k")
    texts = [text for pair in pairs for text in pair]
    reply = await service.asking.ask(
        asked.request,
        served,
        texts,
        lambda: served.model.asking(pairs, search=search, reading=reading),
        asked.timeout_milliseconds,
    )
    found = await service.asking.finished(
        reply, lambda: served.model.best(pairs, reply.answers, search=search), sum(map(len, texts))
    )
    service.metrics.confident(asked.model, (one.score for answers in found for one in answers[:1]))
    most = max(map(len, found))
    rows = [[*answers, *[_NONE] * (most - len(answers))] for answers in found]
    return {
        "answer": [[one.answer for one in row] for row in rows],
        "score": np.array([[one.score for one in row] for row in rows], dtype=np.float32),
        "start": np.array([[one.start for one in row] for row in rows], dtype=np.int64),
        "end": np.array([[one.end for one in row] for row in rows], dtype=np.int64),
    }, reply.headers


def check_answer_size(top_k: int, contexts: Sequence[str], param: str) -> None:
    """Raises ApiError: 422, `top_k` answers from each of these could be too large; `param` asked for so many."""
    num_characters = top_k * sum(map(len, contexts))
    if num_characters > MAX_ANSWER_CHARACTERS:
        raise problem(
            422,
            "answer_too_large",
            "the answer could be too large",
            given=f"{top_k} answers to each question, {num_characters:,} characters of contexts for them together",
            expected=f"at most {MAX_ANSWER_CHARACTERS:,} characters",
            do="ask for fewer answers, or send several requests",
            param=param,
        )
