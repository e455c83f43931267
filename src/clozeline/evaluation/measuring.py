"""Figures of token prediction over a whole split, with those of a unigram baseline and the pseudo-log-likelihood.

Every token is a target exactly once. The figures are sums over tokens, so they do not depend on how rows were batched
(a mean of batch means does). One pass over the split gathers all of them.

An unknown token ([UNK]) is not a target, because predicting it takes no skill. Its bytes still count, or a tokenizer
would gain by leaving hard words unknown. So `nats_per_byte` charges ln 256 nats for each of its bytes, as if they were
spelled in equally likely bytes; its text is taken to be as long as the average token of this split. The other figures
are of the targets alone.

The unigram baseline knows only the frequency of each token. A masked language model that ignores context reaches
exactly its figures, so they are reported with the model's own.

For the pseudo-log-likelihood (Salazar et al. 2020, section 2) each token is hidden alone, with all others as context.
It costs a row for each token, so it is measured on documents spread evenly over a split.

For replaced-token detection (Clark et al. 2020) there is a page of example predictions, too. Tokens are assigned to
folds as for the generator's own figures. Pass k replaces fold k by the generator's guesses, and every real token,
including the two that frame a row, is judged in every pass. The sums are counts, so the figures do not depend on how
rows were batched, and memory does not grow with the split.

Shapes: D documents or blocks of them, T targets of a batch, V vocabulary, K figures; B rows, L longest row, N real
tokens, S bins of scores.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from typing import Self

import numpy as np
import torch
from jinja2 import Environment
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from clozeline.evaluation.groups import NUM_FOLDS, Asked, Grouping, Sums, judge, one_by_one
from clozeline.language import draws, masking, models, objectives, shards
from clozeline.language.detection import ReplacedTokenPair, detection_logits, draw
from clozeline.language.models import LanguageModel
from clozeline.language.shards import Rows, TokenShards
from clozeline.records.evaluation import NATS_PER_UNKNOWN_BYTE, ClozeCandidate, ClozeExample, Guess, TextFigures
from clozeline.records.finetune.statistics import ratio_intervals
from clozeline.system.errors import DataError
from clozeline.system.group import ALONE, Group

# Largest number of blocks. Documents whose ordinals differ by a multiple of it share a block: memory is bounded.
MOST_BLOCKS = 4096
_SHOWN = ("loss_nats_per_token", "perplexity", "nats_per_byte")
_ENDS = ("", "_low", "_high")
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


def measure(
    model: LanguageModel,
    questions: Iterable[Asked],
    groupings: Mapping[str, Grouping],
    advance: Callable[[int], None],
    group: Group = ALONE,
) -> dict[str, Sums]:
    """Run all `questions` and sum the answers by each of `groupings`; call `advance` with the row count of each batch.

    Each process of `group` has other questions, and gets the sums over all of them.
    """
    sums = {name: Sums.zero(grouping.num_groups) for name, grouping in groupings.items()}
    for asked in questions:
        if len(asked.target_T):
            batch = asked.batch.to(group.device)
            judged = judge(models.target_logits(model, batch), batch.labels_T)
            for name, grouping in groupings.items():
                sums[name].add(grouping.groups(asked, judged), judged)
        advance(asked.num_rows)
    return {name: of_process.over(group) for name, of_process in sums.items()}


@dataclass(frozen=True)
class DocumentSums:
    """Sums behind the figures, by document or block of documents."""

    sums: Sums
    num_tokens_D: NDArray[np.int64]
    text_bytes_D: NDArray[np.int64]

    @classmethod
    def of(cls, shards: TokenShards, sums: Sums) -> Self:
        """Add the tokens and bytes of `shards` to `sums`, which are grouped by `by_document`."""
        num_groups = len(sums.num_targets_G)
        group_D = np.arange(shards.num_documents) % num_groups

        def grouped(values_D: NDArray[np.int64]) -> NDArray[np.int64]:
            return np.bincount(group_D, values_D, minlength=num_groups).astype(np.int64)

        offsets = shards.offsets.astype(np.int64)
        lengths_D = offsets[1:] - offsets[:-1]
        return cls(sums, grouped(lengths_D), grouped(shards.document_bytes.astype(np.int64)))

    @property
    def unknown_D(self) -> NDArray[np.int64]:
        return self.num_tokens_D - self.sums.num_targets_G

    @property
    def nats_D(self) -> NDArray[np.float64]:
        """Nats of all the text: the loss of its targets, and the charge for its unknown tokens."""
        bytes_per_token = self.text_bytes_D.sum() / max(self.num_tokens_D.sum(), 1)
        nats_D: NDArray[np.float64] = self.sums.loss_nats_G + NATS_PER_UNKNOWN_BYTE * bytes_per_token * self.unknown_D
        return nats_D


class EncoderFigures(TextFigures):
    """Figures of one model on one split."""

    unknown_tokens: int  # number of [UNK] tokens; they are not targets
    validation_tokens: int  # targets and unknown tokens
    validation_documents: int

    @classmethod
    def of(cls, documents: DocumentSums, num_documents: int, *, seed: int, num_samples: int) -> Self:
        """Return the figures of some documents with their intervals.

        Raises:
            DataError: the documents hold no target.
        """
        sums = documents.sums
        text_bytes = int(documents.text_bytes_D.sum())
        if not sums.num_targets:
            raise DataError(
                f"all {int(documents.num_tokens_D.sum()):,} tokens in {text_bytes:,} bytes of text are unknown",
                do="give more text, or text similar to what the tokenizer was trained on",
            )
        numerators_DK = np.stack([sums.loss_nats_G, sums.num_top1_G, documents.nats_D], axis=1)
        denominators_DK = np.stack([sums.num_targets_G, sums.num_targets_G, documents.text_bytes_D], axis=1)
        ends_2K = ratio_intervals(numerators_DK, denominators_DK.astype(np.float64), seed=seed, num_samples=num_samples)
        loss_nats = float(sums.loss_nats_G.sum())
        loss, num_targets = loss_nats / sums.num_targets, sums.num_targets
        figures = {
            "loss_nats_per_token": (loss, *ends_2K[:, 0].tolist()),
            "top1": (int(sums.num_top1_G.sum()) / num_targets, *ends_2K[:, 1].tolist()),
            "nats_per_byte": (float(documents.nats_D.sum()) / text_bytes, *ends_2K[:, 2].tolist()),
        }
        figures["perplexity"] = tuple(map(math.exp, figures["loss_nats_per_token"]))
        with_ends = {f"{name}{end}": it for name, of in figures.items() for end, it in zip(_ENDS, of, strict=True)}
        return cls(
            **with_ends,
            top5=int(sums.num_top5_G.sum()) / num_targets,
            text_bytes=text_bytes,
            target_tokens=num_targets,
            unknown_tokens=int(documents.unknown_D.sum()),
            validation_tokens=int(documents.num_tokens_D.sum()),
            validation_documents=num_documents,
        )


def expected_calibration_error(by_confidence: Sums) -> float:
    """Return the expected calibration error over bins of equal width (Guo et al. 2017, equation 3)."""
    gap = np.abs(by_confidence.num_top1_G - by_confidence.confidence_G).sum()
    return float(gap / by_confidence.num_targets)


@dataclass(frozen=True)
class UnigramFigures:
    """Figures of the baseline on a split."""

    loss_nats_per_token: float
    perplexity: float
    top1: float
    top5: float


def measure_unigram(train_V: draws.Ids, validation: TokenShards, vocabulary: masking.Vocabulary) -> UnigramFigures:
    """Return the figures of the validation tokens under `train_V`, the training counts, with add-one smoothing."""
    validation_V = objectives.token_counts(validation, vocabulary)
    ordinary = vocabulary.ordinary_ids
    log_probability = np.log((train_V[ordinary] + 1) / (train_V[ordinary] + 1).sum())
    most_frequent = ordinary[np.argsort(-train_V[ordinary], kind="stable")]
    num_targets = validation_V[ordinary].sum()
    loss = float(-(validation_V[ordinary] * log_probability).sum() / num_targets)
    return UnigramFigures(
        loss_nats_per_token=loss,
        perplexity=float(np.exp(loss)),
        top1=float(validation_V[most_frequent[:1]].sum() / num_targets),
        top5=float(validation_V[most_frequent[:5]].sum() / num_targets),
    )


def spread(split: objectives.Split, num_documents: int) -> tuple[objectives.Split, draws.Ids]:
    """Choose at most `num_documents` documents, evenly spaced; return the split of their rows, and their ordinals."""
    last = split.shards.num_documents - 1
    document_D = np.unique(np.linspace(0, last, min(num_documents, last + 1)).astype(np.int64))
    rows = split.rows
    first_D, behind_D = (np.searchsorted(rows.document_R, document_D, side=side) for side in ("left", "right"))
    chosen = [np.arange(first, behind) for first, behind in zip(first_D.tolist(), behind_D.tolist(), strict=True)]
    row_R = np.concatenate(chosen)
    of_documents = Rows(rows.document_R[row_R], rows.start_R[row_R], rows.length_R[row_R])
    return replace(split, rows=of_documents), document_D


def measured(
    model: LanguageModel,
    split: objectives.Split,
    document_D: draws.Ids,
    *,
    batch_tokens: int,
    seed: int,
    num_samples: int,
    advance: Callable[[int], None],
    group: Group = ALONE,
) -> dict[str, float]:
    """Return the figures of the chosen documents, each with its 95 % interval; empty if they hold no known token.

    Args:
        advance: called with the rows of each batch; their total over all processes is `num_copies(split)`.
        group: processes that share the work.
    """
    questions = one_by_one(split, batch_tokens=batch_tokens, group=group)
    # The n-th of the chosen documents, in their order, is group n.
    chosen = Grouping(
        len(document_D), lambda asked, judged: np.searchsorted(document_D, asked.tokens.document_N[asked.target_T])
    )
    sums = measure(model, questions, {"document": chosen}, advance, group)["document"]
    if not sums.num_targets:
        return {}
    offsets = split.shards.offsets
    lengths_D = (offsets[document_D + 1] - offsets[document_D]).astype(np.int64)
    bytes_D = split.shards.document_bytes[document_D].astype(np.int64)
    documents = DocumentSums(sums, lengths_D, bytes_D)
    figures = EncoderFigures.of(documents, len(document_D), seed=seed, num_samples=num_samples)
    shown = {f"pseudo_{name}{end}": getattr(figures, f"{name}{end}") for name in _SHOWN for end in _ENDS}
    return {**shown, "pseudo_documents": len(document_D), "pseudo_target_tokens": figures.target_tokens}


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
def measure_detection(
    model: ReplacedTokenPair,
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


def _counts(model: ReplacedTokenPair, batch: objectives.DetectionBatch, is_special_V: Tensor) -> Counts:
    """Return the number of original and of replaced tokens with a score in each bin."""
    guess_T = draw(models.target_logits(model, batch), batch.uniform_T, is_special_V)
    ids_BL, is_replaced_BL = batch.with_guesses(guess_T)
    mask_BL = batch.attention_mask_BL
    is_real_BL = torch.ones_like(ids_BL, dtype=torch.bool) if mask_BL is None else mask_BL.bool()
    score_N = detection_logits(model, ids_BL, mask_BL)[is_real_BL].double()
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
