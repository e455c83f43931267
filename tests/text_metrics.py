"""Metric files of the stages that make clean text and tokens, for tests of their readers."""

from clozeline.artifacts.preprocess.corpus_metrics import CorpusMetrics, SimilarityMetrics, SplitMetrics
from clozeline.artifacts.tokenize.token_metrics import SplitTokens, TokenMetrics


def corpus_metrics(*, train: int, validation: int = 0, **dropped: int) -> CorpusMetrics:
    """Return the metrics of a corpus with these numbers of kept texts, and of dropped ones by reason."""
    kept = train + validation
    documents_in = kept + sum(dropped.values())
    return CorpusMetrics(
        documents_read=documents_in,
        documents_split=3,
        added_by_splitting=0,
        documents_in=documents_in,
        kept=kept,
        dropped=dropped,
        splits={
            name: SplitMetrics(documents=number, characters=9 * number, bytes=10 * number, sources=2)
            for name, number in {"train": train, "validation": validation}.items()
        },
        similarity=SimilarityMetrics(
            compared_pairs=90, similar_pairs=9, groups=7, grouped_documents=16, largest_group=3, groups_too_large=0
        ),
        versions={"python": "3.11.4"},
    )


def token_metrics(*, unknown_rate: float) -> TokenMetrics:
    split = SplitTokens(
        documents=800,
        empty_documents=0,
        text_bytes=16_000,
        tokens_in=4_000,
        tokens_packed=4_000,
        tokens_dropped=0,
        bytes_per_token=4.0,
        unknown_tokens=1,
        unknown_rate=unknown_rate,
        vocabulary_use=0.9,
        special_strings_in_text=0,
    )
    return TokenMetrics(vocab_size=8192, train=split, validation=split)
