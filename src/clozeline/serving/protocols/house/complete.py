"""/complete: the continuation of a text by a causal language model."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, Field
from starlette.responses import Response

from clozeline.inference.completer import Candidates, Completer, Completion, Decoding, Draft
from clozeline.inference.question import Question
from clozeline.serving.models.catalogue import Ability
from clozeline.serving.protocols.dataframes import Params, Records, Sent
from clozeline.serving.protocols.fields import WHOLE, Inputs, ModelName, RequestBody, texts_of
from clozeline.serving.protocols.operation import Call, Example, JsonResponse, Operation
from clozeline.serving.scheduling.asking import Reply, Turns
from clozeline.serving.scheduling.work import ServedModel

MAX_NEW_TOKENS = 1024
MAX_STOPS = 4
MAX_STOP_CHARACTERS = 256

COMPLETING = Ability(Completer)

NewTokens = Annotated[int, Field(ge=1, le=MAX_NEW_TOKENS), WHOLE]
Temperature = Annotated[float, Field(ge=0, le=100, description="0: the most likely token.", strict=False)]
TopP = Annotated[
    float, Field(gt=0, le=1, description="Draw from the most likely tokens up to this total probability.", strict=False)
]
Seed = Annotated[int, Field(ge=0, lt=2**63, description="The same seed gives the same answer."), WHOLE]
Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
Stops = Annotated[list[Stop], Field(max_length=MAX_STOPS, description="The answer ends before any of these.")]
CutBeginning = Annotated[
    bool, Field(description="Cut off the beginning of a text that is too long, instead of refusing the text.")
]


class CompleteParameters(RequestBody):
    """Names of Hugging Face's text generation."""

    max_new_tokens: NewTokens = 16
    do_sample: Annotated[bool | None, Field(description="false: as temperature 0. null: by the temperature.")] = None
    temperature: Temperature | None = None
    top_p: TopP = 1.0
    seed: Seed = 0
    stop: Stops = Field(default_factory=list)
    return_full_text: Annotated[bool, Field(description="Put the given text before its continuation.")] = False

    @property
    def decoding(self) -> Decoding:
        drawn = 1.0 if self.do_sample else 0.0
        temperature = 0.0 if self.do_sample is False else (drawn if self.temperature is None else self.temperature)
        return Decoding(self.max_new_tokens, temperature, self.top_p, self.seed, tuple(self.stop))


class CompleteRequest(RequestBody):
    inputs: Inputs
    parameters: CompleteParameters | None = None
    truncate: CutBeginning = False
    model: ModelName = None


class Generated(BaseModel):
    generated_text: str
    finish_reason: str = Field(description="`stop`: the text ended. `length`: no more tokens were allowed.")
    num_tokens: int = Field(description="Number of new tokens.")


CompleteResponse = Generated | list[Generated]
"""One continuation for one text, a list for a list."""

COMPLETE_EXAMPLES = {
    "greedy": Example("The likeliest continuation", {"inputs": "Return the number of"}),
    "drawn": Example(
        "Two texts, drawn with a seed",
        {
            "inputs": ["Return the number of", "Raise an"],
            "parameters": {"max_new_tokens": 8, "temperature": 0.8, "top_p": 0.95, "seed": 1},
        },
    ),
}


async def complete(call: Call, body: CompleteRequest) -> Response:
    served = call.served(COMPLETING, body.model)
    texts, wanted = texts_of(body.inputs), body.parameters or CompleteParameters()
    found, reply = await continued(call, served, texts, wanted.decoding, truncate=body.truncate)
    begins = texts if wanted.return_full_text else [""] * len(texts)
    shaped = [
        {"generated_text": begin + one.text, "finish_reason": one.finish_reason, "num_tokens": len(one.tokens)}
        for begin, one in zip(begins, found, strict=True)
    ]
    return JsonResponse(shaped[0] if isinstance(body.inputs, str) else shaped, headers=reply.headers)


async def continued(
    call: Call, served: ServedModel[Completer], texts: Sequence[str], decoding: Decoding, *, truncate: bool
) -> tuple[list[Completion], Reply[Candidates]]:
    """Return the continuation of each text, and the reply to the last question.

    Each new token is a question of its own, so the texts of many requests grow together.
    """
    model, drafts = served.model, list[Draft]()

    def first() -> Question[Candidates]:
        drafts.extend(model.drafts(texts, decoding, truncate=truncate))
        return model.next_tokens([draft.read for draft in drafts])

    def then(answers: list[Candidates]) -> Question[Candidates] | None:
        unfinished = [draft for draft in drafts if draft.finish is None]
        for draft, candidates in zip(unfinished, answers, strict=True):
            model.extend(draft, candidates, decoding)
        open_drafts = [draft for draft in unfinished if draft.finish is None]
        return model.next_tokens([draft.so_far for draft in open_drafts]) if open_drafts else None

    def later_tokens() -> int:
        return sum(draft.later_tokens for draft in drafts)

    reply = await call.ask_in_turn(served, texts, Turns(first, then, later_tokens))
    completions = [model.completion(draft) for draft in drafts]
    call.service.metrics.confident(served.identity.name, (score for one in completions for score in one.scores))
    return completions, reply


async def records(call: Call, name: str, sent: Sent, params: Params) -> Records:
    """Answer like MLflow's scoring server."""
    served, texts = call.served(COMPLETING, name), sent.texts()
    vectors = await call.ask(served, texts, lambda: served.model.embedding(texts, truncate=params.truncate))
    found, reply = await continued(call, served, texts, Decoding(), truncate=params.truncate)
    pairs = zip(vectors.answers, found, strict=True)
    return [{"embedding": vector_H, "completion": one} for vector_H, one in pairs], reply.headers


COMPLETE = Operation(
    path="/complete",
    answer=complete,
    summary="Continue a text",
    result_description="The continuation; one text or a list, as in the request",
    result=CompleteResponse,
    ability=COMPLETING,
    body=CompleteRequest,
    examples=COMPLETE_EXAMPLES,
)
