"""A task of the kind `zero_shot`."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from clozeline.params.finetuning.classification import LabelledParams
from clozeline.params.section import Rule, Section

BLANK = "[MASK]"
"""In a prompt, whatever the tokenizer calls its mask."""


class EntailmentParams(Section):
    """A classifier of pairs of texts that has a label `entailment`."""

    model: str
    """A folder, such as models/finetuned/mnli, or a name on the hub."""
    revision: str | None = None
    """A commit there."""


class ZeroShotParams(LabelledParams):
    """One label for each text, by what a model says of a prompt behind it: nothing is trained."""

    kind: Literal["zero_shot"]
    prompt: str
    """What is said behind each text, with one blank."""
    entailment: EntailmentParams | None
    """Does the prompt, filled with a label's words, follow from the text? Null: what would the encoder fill in?"""
    label_words: dict[str, Annotated[tuple[str, ...], Field(min_length=1)]] | None
    """Label → words that stand for it, each one token, or by entailment any phrase; null: the labels themselves."""
    calibrated: bool
    """How much likelier a word is behind the text than in the prompt alone, instead of how likely."""
    rules: ClassVar[tuple[Rule, ...]] = (
        *LabelledParams.rules,
        ("prompt", lambda prompt: prompt.count(BLANK) == 1, f"a sentence with one {BLANK}"),
        ("multi_label", lambda several: not several, "`multi_label: false`: one word is filled in"),
        ("second_field", lambda second: second is None, "`second_field: null`: one text, and the prompt behind it"),
        ("num_seeds", lambda num: num == 1, "`num_seeds: 1`: nothing is drawn"),
        ("class_weights", lambda weights: weights == "none", "`class_weights: none`: nothing is trained"),
        ("lora", lambda lora: lora is None, "`lora: null`: nothing is trained"),
    )
    idle: ClassVar[tuple[str, ...]] = (
        "micro_batch_tokens",
        "epochs",
        "looks_per_epoch",
        "patience",
        "optimizer",
        "warmup_fraction",
        "layer_decay",
        "frozen_layers",
        "checkpoint_every_steps",
    )
    measured_by: ClassVar[tuple[str, ...]] = (
        *LabelledParams.measured_by,
        "prompt",
        "label_words",
        "calibrated",
    )

    @property
    def named_labels(self) -> frozenset[str]:
        return frozenset(self.label_words or ())
