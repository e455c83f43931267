"""Comparison of the data of a run with those of the last accepted run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from clozeline.artifacts.stability import stability_index
from clozeline.contract.label_profile import LabelProfile
from clozeline.contract.text_profile import TextProfile
from clozeline.params import ContractParams

MAX_DROPPED_INCREASE = 0.2
"""Increase of the share of documents dropped for one reason."""
MAX_SCRIPT_SHIFT = 0.1
"""Change of the share of letters of one script, such as Latin."""
MIN_LANGUAGE_SIMILARITY = 0.7
"""Cosine of the frequencies of character trigrams; that of another language is below 0.6."""
MAX_LENGTH_INDEX = 0.25
"""Population stability index of the lengths of texts; 0.25 is usually called a large shift."""
MAX_UNKNOWN_INDEX = 0.1
"""Population stability index of the shares of unknown tokens of texts, if their share of all has grown."""
MAX_CONFLICT_SHARE = 0.05
"""Share of labelled texts whose copies have different labels."""
MAX_CLASS_INDEX = 0.25
"""Population stability index of the classes of labelled texts."""
_LEAST_TEXTS = 200
"""Least number of sampled or labelled texts for a comparison of distributions: with fewer, the stability index is
noise."""


@dataclass(frozen=True)
class Clause:
    """One figure of the data, its limit, and the figure of the last accepted data."""

    name: str
    given: float
    least: float | None = None
    most: float | None = None
    accepted: float | None = None
    """None if the limit does not depend on it."""

    @property
    def is_kept(self) -> bool:
        return (self.least is None or self.given >= self.least) and (self.most is None or self.given <= self.most)

    def __str__(self) -> str:
        limits = [
            f"{word} {_number(end)}"
            for word, end in (("at least", self.least), ("at most", self.most))
            if end is not None
        ]
        beside = "" if self.accepted is None else f", last accepted {_number(self.accepted)}"
        return f"{self.name}: {_number(self.given)} ({' and '.join(limits)}{beside})"


def broken(clauses: Sequence[Clause]) -> list[Clause]:
    return [clause for clause in clauses if not clause.is_kept]


def text_clauses(params: ContractParams, now: TextProfile, accepted: TextProfile | None) -> Iterator[Clause]:
    """Yield the clauses about the text; without accepted text, only those that need none."""
    yield Clause("documents", now.documents, least=params.min_documents, most=params.max_documents)
    if accepted is None:
        return
    least = (1 - params.max_missing_share) * accepted.documents
    yield Clause("documents beside the last accepted", now.documents, least=least, accepted=accepted.documents)
    for reason, share in now.dropped_shares.items():
        before = accepted.dropped_shares.get(reason, 0.0)
        yield Clause(f"share dropped as {reason}", share, most=before + MAX_DROPPED_INCREASE, accepted=before)
    if min(now.num_sampled, accepted.num_sampled) < _LEAST_TEXTS:
        return
    for script in sorted({*now.script_shares, *accepted.script_shares}):
        share, before = now.script_shares.get(script, 0.0), accepted.script_shares.get(script, 0.0)
        if abs(share - before) > MAX_SCRIPT_SHIFT:
            ends = before - MAX_SCRIPT_SHIFT, before + MAX_SCRIPT_SHIFT
            yield Clause(f"share of {script} letters", share, *ends, before)
    similarity = now.language_similarity(accepted)
    yield Clause("similarity of character trigrams", similarity, least=MIN_LANGUAGE_SIMILARITY)
    index = stability_index(accepted.texts_by_length, now.texts_by_length)
    yield Clause("stability index of lengths", index, most=MAX_LENGTH_INDEX)
    if accepted.texts_by_unknown and now.unknown_rate > accepted.unknown_rate:  # fewer are no fault
        index = stability_index(accepted.texts_by_unknown, now.texts_by_unknown)
        rates = f"{accepted.unknown_rate:.2%} of all before, {now.unknown_rate:.2%} now"
        yield Clause(f"stability index of unknown tokens by text ({rates})", index, most=MAX_UNKNOWN_INDEX)


def label_clauses(params: ContractParams, now: LabelProfile, accepted: LabelProfile | None) -> Iterator[Clause]:
    """Yield the clauses about the labels of a task."""
    yield Clause("share of texts with conflicting labels", now.conflict_share, most=MAX_CONFLICT_SHARE)
    if accepted is None:
        return
    if min(now.num_texts, accepted.num_texts) >= _LEAST_TEXTS:
        index = stability_index(accepted.texts_by_label, now.texts_by_label)
        yield Clause("stability index of classes", index, most=MAX_CLASS_INDEX)
    changed = now.changed_test_rows(accepted)
    yield Clause("share of accepted test rows that are gone or relabelled", changed, most=params.max_changed_test_rows)


def _number(number: float) -> str:
    return f"{int(number):,}" if float(number).is_integer() else f"{number:,.4f}"
