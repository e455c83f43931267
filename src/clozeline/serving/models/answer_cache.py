"""Cache of answers by the exact bytes of the body. Off by default, and in every benchmark."""

from collections import OrderedDict

Key = tuple[str, bytes, int]
"""Path, body, and number of model swaps so far, so that answers of a replaced model are not found."""
_COST_OF_ONE = 512
"""Approximate bytes of an entry besides its body and its answer."""


class AnswerCache:
    """Keeps the most recently used answers that fit into `size_bytes`."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._used_bytes = 0
        self._kept: OrderedDict[Key, tuple[bytes, dict[str, str]]] = OrderedDict()

    @property
    def is_on(self) -> bool:
        return self._size_bytes > 0

    def find(self, key: Key) -> tuple[bytes, dict[str, str]] | None:
        """Return the body and headers kept under `key`; None if there are none."""
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
