"""A page of example predictions: original, masked, predicted, and the probability of each prediction."""

from importlib import resources

import numpy as np
import torch
from jinja2 import Environment
from tokenizers import Tokenizer

from clozeline.artifacts.evaluate.cloze_example import Candidate, Example, Guess
from clozeline.language_modelling import language_model
from clozeline.language_modelling.batches import Split
from clozeline.language_modelling.language_model import LanguageModel
from clozeline.language_modelling.objectives import OBJECTIVES
from clozeline.tokens.rows import RowTokens

NUM_EXAMPLES = 12
"""Examples on the page of stage `evaluate`."""
_MIN_CONTENT_TOKENS = 12
"""Shorter rows give too little context for an example."""
_TOP = 5


def make_examples(
    model: LanguageModel, split: Split, tokenizer: Tokenizer, *, seed: int, num_folds: int, num_examples: int
) -> list[Example]:
    """Return examples from rows spread evenly over the split, with the first fold of each hidden."""
    worth = np.flatnonzero(split.rows.length_R >= _MIN_CONTENT_TOKENS)
    spread = np.unique(np.linspace(0, len(worth) - 1, min(num_examples, len(worth))).astype(np.int64))
    rows = worth[spread] if len(worth) else worth
    return [_example(model, split, tokenizer, split.read(np.array([row])), seed, num_folds) for row in rows]


@torch.inference_mode()
def _example(
    model: LanguageModel, split: Split, tokenizer: Tokenizer, tokens: RowTokens, seed: int, num_folds: int
) -> Example:
    batch = OBJECTIVES[language_model.head_of(model)].judging(split, tokens, seed, 0, num_folds)
    probabilities_TV = language_model.target_logits(model, batch).softmax(dim=1)
    best_TK = probabilities_TV.topk(min(_TOP, probabilities_TV.shape[1]), dim=1)
    original_T = probabilities_TV.gather(1, batch.labels_T[:, None])[:, 0]
    guesses = [
        Guess(
            original=tokenizer.decode([label]),
            original_probability=probability,
            candidates=tuple(
                Candidate(tokenizer.decode([token]), likely) for token, likely in zip(tokens_K, likely_K, strict=True)
            ),
        )
        for label, probability, tokens_K, likely_K in zip(
            *(values.tolist() for values in (batch.labels_T, original_T, best_TK.indices, best_TK.values)), strict=True
        )
    ]
    shown_ids = batch.input_ids_BL[0, 1:-1].tolist()
    return Example(
        original=tokenizer.decode(tokens.input_ids_N.tolist()),
        masked=tokenizer.decode(shown_ids, skip_special_tokens=False),
        mask_token=tokenizer.decode([split.vocabulary.mask_id], skip_special_tokens=False),
        guesses=tuple(guesses),
    )


def as_text(examples: list[Example]) -> str:
    """Return the examples as text for a terminal."""
    blocks = []
    for number, example in enumerate(examples, start=1):
        lines = [f"{number}. {example.original}", f"   {example.masked}"]
        for guess in example.guesses:
            mark = "✓" if guess.predicted == guess.original else " "
            lines.append(f"   {mark} {guess.original!r:<20} → {guess.predicted!r:<20} {guess.probability:6.1%}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def as_html(examples: list[Example]) -> str:
    """Return the examples as one HTML file without external assets."""
    page = resources.files("clozeline.evaluation").joinpath("examples.html").read_text(encoding="utf-8")
    made: str = Environment(autoescape=True, trim_blocks=True).from_string(page).render(examples=examples)
    return made
