"""How much one client may ask for at once."""

MAX_BODY_BYTES = 2 * 2**20
MAX_BODY_SECONDS = 60.0
"""From the head of a request to the end of its body."""
MAX_TEXTS = 256
MAX_TEXT_CHARACTERS = 100_000
"""Many times what any model reads: a text beyond it would only be tokenized, for seconds, to be cut or refused."""
MAX_TOP_K = 100
MAX_ANSWER_CHARACTERS = 16 * 2**20
"""Of the texts in the answer to one request: 100 KB of masks with 100 candidates each would be told in gigabytes."""
MAX_TIMEOUT_MILLISECONDS = 600_000
