"""Identity of a text by content, the same in the corpus and in a task."""

from collections.abc import Sequence
from hashlib import blake2b

KEY_BYTES = 16


def content_key(*texts: str) -> bytes:
    """Return 128 bits of BLAKE2b over the texts in order, ignoring case and white space."""
    normalized = "\x1f".join(" ".join(text.casefold().split()) for text in texts)
    return blake2b(normalized.encode(), digest_size=KEY_BYTES).digest()


def identity_of(*texts: str) -> str:
    """Return `content_key` in hex, as in the column `doc_id` of the clean text."""
    return content_key(*texts).hex()


def keyed_hash(words: Sequence[str], key: bytes, num_bytes: int) -> str:
    """Return a hash of a text's words in hex. Without `key` nobody can find out by trying which text it is."""
    return blake2b(" ".join(words).encode(), digest_size=num_bytes, key=key).hexdigest()
