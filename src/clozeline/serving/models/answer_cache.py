"""Answers that are given again to the very same body. Off unless it is given a size, and in every benchmark."""

from collections import OrderedDict

Key = tuple[str, bytes, int]
"""Path, body, and how often a model was replaced before: an answer of an old model is not found any more."""
_COST_OF_ONE = 512
"""Bytes that an entry takes beside its key and its answer, roughly."""


class AnswerCache:
    """The answers used last, as long as all of them fit `size_bytes`."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._used_bytes = 0
        self._kept: OrderedDict[Key, tuple[bytes, dict[str, str]]] = OrderedDict()

    @property
    def is_on(self) -> bool:
        return self._size_bytes > 0

    def find(self, key: Key) -> tuple[bytes, dict[str, str]] | None:
        """The body and headers that were kept under `key`."""
        kept = self._kept.get(key)
        if kept:
            self._kept.move_to_end(key)
        return kept

    def keep(self, key: Key, body: bytes, headers: dict[str, str]) -> None:
        if key in self._kept or _cost(key, body) > self._size_bytes:
            return
        self._kept[key] = (body, headers)
        self._used_bytes += _cost(key, body)
        while self._used_bytes > self._size_bytes:
            dropped, (old_body, _) = self._kept.popitem(last=False)
            self._used_bytes -= _cost(dropped, old_body)


def _cost(key: Key, body: bytes) -> int:
    return len(key[1]) + len(body) + _COST_OF_ONE
