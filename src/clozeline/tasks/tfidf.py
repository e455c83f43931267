"""TF-IDF features of texts, for the simple methods that a task is compared with."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sklearn.feature_extraction.text import TfidfVectorizer


def tfidf_vectorizer(*, min_texts: int = 1) -> "TfidfVectorizer":
    """Return a vectorizer of words that occur in at least `min_texts` texts, with sublinear term frequency."""
    from sklearn.feature_extraction.text import TfidfVectorizer  # takes two seconds; few stages need it

    return TfidfVectorizer(min_df=min_texts, sublinear_tf=True, token_pattern=r"(?u)\b\w+\b")
