"""Figures of replaced-token detection over a whole split (Clark et al. 2020), and a page of example predictions.

Tokens are assigned to folds as for the generator's own figures. Pass k replaces fold k by the generator's guesses, and
every real token, including the two that frame a row, is judged in every pass. The sums are counts, so the figures do
not depend on how rows were batched, and memory does not grow with the split.

An example shows the original, the masked text, the predictions, and their probabilities.

Shapes: B rows, L longest row, N real tokens, S bins of scores.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import resources

import numpy as np
import torch
from jinja2 import Environment
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from clozeline.evaluation.groups import NUM_FOLDS, Asked
from clozeline.language import detection, masking, models, objectives, shards
from clozeline.language.models import LanguageModel
from clozeline.records.evaluation import ClozeCandidate, ClozeExample, Guess
from clozeline.system.group import ALONE, Group

Counts = NDArray[np.int64]
# Even, so that no bin holds scores from both sides of 0.
_NUM_BINS = 2**16
# Logits further from 0 fall into the outermost bin.
_MOST = 16.0
# Examples on the page of stage `evaluate`.
NUM_EXAMPLES = 12
# Shorter rows give too little context for an example.
_MIN_CONTENT_TOKENS = 12
_TOP = 5


@dataclass(frozen=True)
class DetectionFigures:
    """Figures of one discriminator against one generator; "positive" is a replaced token."""

    accuracy: float
    majority_accuracy: float  # accuracy of calling every token original
    # Probability that a replaced token scores higher than an original one (ties: 1/2); None if a kind is missing.
    auc: float | None
    precision: float
    recall: float
    f1: float
    tokens: int  # number of judgements: each token counts once in every pass


@torch.inference_mode()
def measure(
    model: detection.ReplacedTokenPair,
    questions: Iterable[Asked],
    vocabulary: masking.Vocabulary,
    advance: Callable[[int], None],
    group: Group = ALONE,
) -> DetectionFigures:
    """Judge `model` on every token of `questions`, in all their passes; call `advance` with the row count of each
    batch.

    Each process of `group` has other questions, and gets the figures of all of them.
    """
    is_special_V = torch.from_numpy(vocabulary.is_special_V).to(group.device)
    counts_2S = np.zeros((2, _NUM_BINS), dtype=np.int64)
    for asked in questions:
        assert isinstance(asked.batch, objectives.DetectionBatch)
        counts_2S += _counts(model, asked.batch.to(group.device), is_special_V)
        advance(asked.num_rows)
    return figures_of(np.stack(group.of_each(counts_2S)).sum(axis=0))


def _counts(model: detection.ReplacedTokenPair, batch: objectives.DetectionBatch, is_special_V: Tensor) -> Counts:
    """Return the number of original and of replaced tokens with a score in each bin."""
    guess_T = detection.draw(models.target_logits(model, batch), batch.uniform_T, is_special_V)
    ids_BL, is_replaced_BL = batch.with_guesses(guess_T)
    mask_BL = batch.attention_mask_BL
    is_real_BL = torch.ones_like(ids_BL, dtype=torch.bool) if mask_BL is None else mask_BL.bool()
    score_N = detection.detection_logits(model, ids_BL, mask_BL)[is_real_BL].double()
    bin_N = ((score_N + _MOST) * (_NUM_BINS / (2 * _MOST))).floor().long().clamp(0, _NUM_BINS - 1)
    key_N = is_replaced_BL[is_real_BL].long() * _NUM_BINS + bin_N
    return torch.bincount(key_N, minlength=2 * _NUM_BINS).view(2, _NUM_BINS).cpu().numpy()


def figures_of(counts_2S: Counts) -> DetectionFigures:
    """Return the figures of a histogram of scores.

    `counts_2S` holds the original and the replaced tokens in an even number of bins, ascending and centred on 0.
    """
    half = counts_2S.shape[1] // 2
    (right_originals, false_alarms), (missed, found) = (
        (int(counts_S[:half].sum()), int(counts_S[half:].sum())) for counts_S in counts_2S
    )
    originals, replaced = right_originals + false_alarms, missed + found
    original_S, replaced_S = counts_2S.astype(np.float64)
    below_S = np.cumsum(original_S) - original_S / 2
    pairs = originals * replaced
    return DetectionFigures(
        accuracy=(right_originals + found) / (originals + replaced),
        majority_accuracy=originals / (originals + replaced),
        auc=float((replaced_S * below_S).sum() / pairs) if pairs else None,
        precision=found / max(found + false_alarms, 1),
        recall=found / max(replaced, 1),
        f1=2 * found / max(2 * found + false_alarms + missed, 1),
        tokens=originals + replaced,
    )


def make_examples(model: LanguageModel, split: objectives.Split, tokenizer: Tokenizer, seed: int) -> list[ClozeExample]:
    """Return examples from rows spread evenly over the split, with the first fold of each hidden."""
    worth = np.flatnonzero(split.rows.length_R >= _MIN_CONTENT_TOKENS)
    spread = np.unique(np.linspace(0, len(worth) - 1, min(NUM_EXAMPLES, len(worth))).astype(np.int64))
    rows = worth[spread] if len(worth) else worth
    return [_example(model, split, tokenizer, split.read(np.array([row])), seed) for row in rows]


@torch.inference_mode()
def _example(
    model: LanguageModel, split: objectives.Split, tokenizer: Tokenizer, tokens: shards.RowTokens, seed: int
) -> ClozeExample:
    batch = objectives.OBJECTIVES[models.head_of(model)].evaluation_batch(split, tokens, seed, 0, NUM_FOLDS)
    probabilities_TV = models.target_logits(model, batch).softmax(dim=1)
    best_TK = probabilities_TV.topk(min(_TOP, probabilities_TV.shape[1]), dim=1)
    original_T = probabilities_TV.gather(1, batch.labels_T[:, None])[:, 0]
    guesses = [
        Guess(
            original=tokenizer.decode([label]),
            original_probability=probability,
            candidates=tuple(
                ClozeCandidate(tokenizer.decode([token]), likely)
                for token, likely in zip(tokens_K, likely_K, strict=True)
            ),
        )
        for label, probability, tokens_K, likely_K in zip(
            *(values.tolist() for values in (batch.labels_T, original_T, best_TK.indices, best_TK.values)), strict=True
        )
    ]
    shown_ids = batch.input_ids_BL[0, 1:-1].tolist()
    return ClozeExample(
        original=tokenizer.decode(tokens.input_ids_N.tolist()),
        masked=tokenizer.decode(shown_ids, skip_special_tokens=False),
        mask_token=tokenizer.decode([split.vocabulary.mask_id], skip_special_tokens=False),
        guesses=tuple(guesses),
    )


def as_text(examples: list[ClozeExample]) -> str:
    """Return the examples as text for a terminal."""
    blocks = []
    for number, example in enumerate(examples, start=1):
        lines = [f"{number}. {example.original}", f"   {example.masked}"]
        for guess in example.guesses:
            mark = "✓" if guess.predicted == guess.original else " "
            lines.append(f"   {mark} {guess.original!r:<20} → {guess.predicted!r:<20} {guess.probability:6.1%}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def as_html(examples: list[ClozeExample]) -> str:
    """Return the examples as one HTML file without external assets."""
    page = resources.files("clozeline.evaluation").joinpath("examples.html").read_text(encoding="utf-8")
    made: str = Environment(autoescape=True, trim_blocks=True).from_string(page).render(examples=examples)
    return made
