"""The parameters of a request in the Open Inference Protocol, each of which models of some tasks read.

The protocol has numbers, strings and booleans for them: what is a list on other routes cannot be said here.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated

from pydantic import Field

from clozeline.artifacts.manifest import Task
from clozeline.serving.errors import problem
from clozeline.serving.schemas import TopK, Truncate
from clozeline.serving.span_schemas import AnswerSearch, TagReading


class InferParameters(TagReading, AnswerSearch):
    """Those of tags and answers are as on /tag and /answer."""

    binary_data_output: bool = False
    top_k: Annotated[
        TopK | None, Field(description="Candidates of the mask, labels, or answers; null: 5, all, or 1.")
    ] = None
    truncate: Truncate = False


_OF_ALL = frozenset({"binary_data_output"})
_READ: Mapping[Task, frozenset[str]] = MappingProxyType(
    {
        "fill-mask": _OF_ALL | {"top_k", "truncate"},
        "text-classification": _OF_ALL | {"top_k", "truncate"},
        "feature-extraction": _OF_ALL | {"truncate"},
        "token-classification": _OF_ALL | set(TagReading.model_fields),
        "question-answering": _OF_ALL | {"top_k"} | set(AnswerSearch.model_fields),
    }
)


def check_parameters(task: Task, parameters: InferParameters) -> None:
    """Raises ApiError: 422, one of those that were sent says nothing to a model of `task`."""
    unread = sorted(parameters.model_fields_set - _READ[task])
    if unread:
        raise problem(
            422,
            "no_such_parameter",
            "the model does not read this parameter",
            given=unread[0],
            expected=f"one of: {', '.join(sorted(_READ[task]))}",
            do="leave it out",
            param=f"parameters.{unread[0]}",
        )
