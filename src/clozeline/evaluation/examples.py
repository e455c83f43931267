"""A page of example predictions: original, masked, predicted, and the probability of each prediction."""

from html import escape

import numpy as np
import torch
from tokenizers import Tokenizer

from clozeline.artifacts.evaluate.cloze_example import Candidate, Example, Guess
from clozeline.language_modelling import language_model
from clozeline.language_modelling.batches import Split
from clozeline.language_modelling.language_model import LanguageModel
from clozeline.language_modelling.objectives import OBJECTIVES
from clozeline.tokens.rows import RowTokens

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
    articles = "\n".join(_article(example) for example in examples)
    return _PAGE.format(articles=articles)


def _article(example: Example) -> str:
    rows = "\n".join(
        f'<tr class="{"hit" if guess.predicted == guess.original else "miss"}"><td>{escape(guess.original)}</td>'
        f"<td>{escape(guess.predicted)}</td><td>{guess.probability:.1%}</td></tr>"
        for guess in example.guesses
    )
    return (
        f"<article><p>{escape(example.original)}</p><p class=masked>{escape(example.masked)}</p>"
        f"<table><tr><th>original</th><th>predicted</th><th>probability</th></tr>\n{rows}</table></article>"
    )


_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Example predictions</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem; }}
article {{ border-top: 1px solid #ccc; padding: 1rem 0; }}
.masked {{ color: #666; }}
th, td {{ text-align: left; padding: 0 1.5rem 0 0; }}
th {{ font-weight: normal; color: #666; }}
.hit td {{ color: #067a3a; }}
</style>
<h1>Example predictions</h1>
<p>Texts of the validation split. Green: the model's first guess is the hidden token.</p>
{articles}
</html>
"""
