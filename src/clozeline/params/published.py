"""Section `imports`: published models as `clozeline import` resolved them."""

from typing import Annotated, Literal

from pydantic import Field

from clozeline.params.section import Count, Section

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
PublishedTask = Literal[
    "fill-mask",
    "text-generation",
    "text-classification",
    "token-classification",
    "question-answering",
    "feature-extraction",
]
PoolingName = Literal["mean", "cls", "max"]


class ImportParams(Section):
    """One published model: which files, and what they say that config.json does not."""

    model: str
    """Folder, or name on the hub."""
    revision: Annotated[str, Field(pattern="^[0-9a-f]{40}$")] | None
    """Commit on the hub; null for a folder."""
    task: PublishedTask
    pooling: PoolingName
    """How the vectors of tokens become the vector of a text."""
    prompts: dict[str, str]
    """Name of a prompt → text before each text that is embedded with it."""
    default_prompt: str | None
    """Name of the prompt of texts that are embedded without one."""
    max_length: Count
    """Longest input in tokens, including special tokens."""
    reads_pairs: bool
    """Whether a classifier reads pairs of texts, such as premise and hypothesis."""
    items: str
    """File with the items on which INT8 is compared with fp32, one JSON object per line."""
    sha256: dict[str, Sha256]
    """File → sha256, for every file that is read."""

    rules = (
        (
            "prompts default_prompt",
            lambda prompts, name: name is None or name in prompts,
            "null, or the name of one of the `prompts`",
        ),
    )
