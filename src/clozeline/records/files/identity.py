"""Identity of a text by content, the same in the corpus and in a task."""

from hashlib import blake2b

KEY_BYTES = 16


def content_key(*texts: str) -> bytes:
    """Return 128 bits of BLAKE2b over the texts in order, ignoring case and white space."""
    normalized = "\x1f".join(" ".join(text.casefold().split()) for text in texts)
    return blake2b(normalized.encode(), digest_size=KEY_BYTES).digest()


def identity_of(*texts: str) -> str:
    """Return `content_key` in hex, as in the column `doc_id` of the clean text."""
    return content_key(*texts).hex()
