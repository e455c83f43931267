"""Metric files of the stages on text, tokens and the encoder, for tests of their readers."""

from clozeline.records.clean_text import CorpusMetrics, SimilarityMetrics, SplitMetrics
from clozeline.records.evaluation import EncoderMetrics
from clozeline.records.token_metrics import SplitTokens, TokenMetrics


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
            compared_pairs=90, similar_pairs=9, groups=7, grouped_documents=16, largest_group=3, full_groups=0
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


def encoder_metrics(**changed: float) -> EncoderMetrics:
    """Return the metrics of an encoder, with `changed` figures or more of them."""
    given = {
        "loss_nats_per_token": 5.0,
        "perplexity": 148.4,
        "nats_per_byte": 1.25,
        "text_bytes": 4000,
        "target_tokens": 1000,
        "top1": 0.3,
        "top5": 0.5,
        "unigram_perplexity": 900.0,
        "unigram_top1": 0.05,
        "unigram_top5": 0.1,
        "contaminated_fraction": 0.0,
    } | changed
    ends = {
        f"{name}{end}": factor * given[name]
        for name in ("loss_nats_per_token", "perplexity", "nats_per_byte", "top1")
        for end, factor in {"_low": 0.98, "_high": 1.02}.items()
    }
    return EncoderMetrics.model_validate(ends | given)
