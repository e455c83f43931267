"""Tasks of the kind `zero_shot`."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from clozeline.params.finetuning.classification import LabelledParams
from clozeline.params.section import Rule, Section

BLANK = "[MASK]"
"""The blank of a prompt, whatever the tokenizer calls its mask."""


class EntailmentParams(Section):
    """A classifier of pairs of texts with a label `entailment`."""

    model: str
    """Folder, such as models/finetuned/mnli, or name on the hub."""
    revision: str | None = None
    """Commit on the hub."""


class ZeroShotParams(LabelledParams):
    """Tasks with one label for each text, by a model's answer to a prompt after it: nothing is trained."""

    kind: Literal["zero_shot"]
    # These four have one valid value. The other knobs of texts and labels begin as those of `classification`.
    multi_label: bool = False
    second_field: str | None = None
    class_weights: Literal["none", "balanced"] = "none"
    train_length: Annotated[int, Field(ge=8)] | None = None
    prompt: str
    """Prompt after each text, with one blank."""
    entailment: EntailmentParams | None
    """Null: which word would the encoder fill in? Otherwise: does the prompt, filled with a label's words, follow from
    the text?
    """
    label_words: dict[str, Annotated[tuple[str, ...], Field(min_length=1)]] | None
    """Label → words that stand for it, each one token, or with entailment any phrase; null: the labels themselves."""
    calibrated: bool
    """Whether a word is scored by how much likelier it is after the text than in the prompt alone."""
    rules: ClassVar[tuple[Rule, ...]] = (
        *LabelledParams.rules,
        ("prompt", lambda prompt: prompt.count(BLANK) == 1, f"a sentence with one {BLANK}"),
        ("multi_label", lambda several: not several, "`multi_label: false`: one word is filled in"),
        ("second_field", lambda second: second is None, "`second_field: null`: one text, with the prompt after it"),
        ("num_seeds", lambda num: num == 1, "`num_seeds: 1`: nothing is random"),
        ("class_weights", lambda weights: weights == "none", "`class_weights: none`: nothing is trained"),
        ("train_length", lambda length: length is None, "`train_length: null`: nothing is trained"),
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

    @property
    def named_labels(self) -> frozenset[str]:
        return frozenset(self.label_words or ())

    @property
    def instead_of_causal(self) -> str:
        why = "objective `mlm`, because a causal model fills no masks; or set `entailment`"
        return "" if self.entailment else why
