"""One label for each text, as transformers' `examples/pytorch/text-classification/run_glue.py` does it.

A reimplementation of its documented behaviour: `--train_file` and the like with a text and a label, rows of
`--max_seq_length` (128 by default), `--pad_to_max_length` (its default), `default_data_collator`.
"""

from pathlib import Path
from typing import Any

from transformers import AutoModelForSequenceClassification, default_data_collator

from comparison.their_tasks import PARTS, Recipe, opened


def answers(parts: Path, weights: Path, recipe: Recipe) -> list[str]:
    """Return a label for each text of the test part."""
    with opened(parts, weights, recipe) as script:
        labels = sorted(script.parts["train"].unique("label"))
        place = {label: number for number, label in enumerate(labels)}
        model = AutoModelForSequenceClassification.from_pretrained(weights, num_labels=len(labels))

        def tokenize(examples: dict[str, list[str]]) -> Any:
            rows = script.tokenizer(
                examples["text"], padding="max_length", max_length=recipe.max_length, truncation=True
            )
            return rows | {"label": [place[label] for label in examples["label"]]}

        rows = {part: script.mapped(part, tokenize) for part in PARTS}
        logits_TC = script.predict(model, default_data_collator, rows)
        return [labels[number] for number in logits_TC.argmax(axis=1).tolist()]
