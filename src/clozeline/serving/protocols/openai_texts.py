"""What OpenAI's embeddings and completions share: their texts, the count of tokens, and the list of models."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from clozeline.serving.protocols.fields import TEXT_TAG, TEXTS_TAG, Text, inputs_kind

LIST = "/v1/models"
_MAX_TEXTS = 2048


def _no_token_ids(given: Any) -> Any:
    first = given[0] if isinstance(given, list) and given else None
    if isinstance(first, int) or (isinstance(first, list) and first and isinstance(first[0], int)):
        raise PydanticCustomError(
            "token_ids",
            "text, because token ids are those of another tokenizer (LangChain: check_embedding_ctx_length=False)",
        )
    return given


_TEXTS = f"a text, or a list of 1 to {_MAX_TEXTS} texts"
OpenAITexts = Annotated[
    Annotated[Text, Tag(TEXT_TAG)] | Annotated[list[Text], Field(min_length=1, max_length=_MAX_TEXTS), Tag(TEXTS_TAG)],
    Field(description=f"{_TEXTS.capitalize()}. Token ids are refused, because they are those of another tokenizer."),
    Discriminator(inputs_kind, custom_error_type="inputs_type", custom_error_message=_TEXTS),
    BeforeValidator(_no_token_ids),
]


class Usage(BaseModel):
    prompt_tokens: int = Field(description="Number of tokens, including special tokens.")
    total_tokens: int
