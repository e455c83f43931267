"""metrics/tokenize.json: each split as tokens."""

from clozeline.records.record import MetricFile, Record


class SplitTokens(Record):
    """Counts of one split: `tokens_in` = `tokens_packed` + `tokens_dropped`."""

    documents: int
    empty_documents: int
    text_bytes: int
    tokens_in: int
    tokens_packed: int
    tokens_dropped: int  # special tokens that the tokenizer found in raw text
    bytes_per_token: float
    unknown_tokens: int
    unknown_rate: float  # share of unknown tokens, 0-1
    vocabulary_use: float  # share of the ordinary tokens of the vocabulary that occur, 0-1
    # Occurrences of `[MASK]` or another special token written out in a text; they are packed as ordinary text.
    special_strings_in_text: int


class TokenMetrics(MetricFile):
    vocab_size: int
    train: SplitTokens
    validation: SplitTokens
