"""Texts of characters that tokenizers treat in a way of their own, and tokenizers of each algorithm that know them."""

from collections.abc import Sequence

from hypothesis import strategies as st
from tokenizers import Tokenizer

from clozeline.params.text import TokenizeParams
from clozeline.tokenizing.vocabularies import learn
from tests.tokenizing.conftest import MadeTexts

ODD = "=\u0338?{`aéb 東É\u0301\n\t\r\x0b\x0c\x1c\x1f\x85\xa0\u200b\u2028\u3000▁'sĠ½¨ﷺ,.(MASK]0१\ufffd\x00\U0001f600İΣς"
ALGORITHMS = ("wordpiece", "bpe", "unigram")
odd_text = st.lists(st.sampled_from([*ODD, *"    \n\nabab", "[MASK]", "[UNK]"]), max_size=30).map("".join)


def learned_tokenizer(algorithm: str, texts: Sequence[str]) -> Tokenizer:
    """Return a tokenizer of 400 tokens from `texts` and the odd characters; all but BPE lowercase their input."""
    params = TokenizeParams.model_validate(
        {
            "algorithm": algorithm,
            "existing": None,
            "vocab_size": 400,
            "min_frequency": 2,
            "lowercase": algorithm != "bpe",
            "shard_tokens": 5000,
        }
    )
    return learn(params, [MadeTexts([*texts, ODD, ODD])])
