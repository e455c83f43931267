"""Tagging: the entities of a text, with their types and positions.

Shapes: C tags, L tokens of a window, T of them without special tokens.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from clozeline.inference.entities import OUTSIDE, Aggregation, ScoredToken, Tagged, aggregated
from clozeline.inference.open_model import PerToken, Records
from clozeline.inference.question import AnyQuestion, Question, Rows
from clozeline.inference.scores import softmax
from clozeline.inference.tokenization import Window


@dataclass(frozen=True, slots=True)
class TaggedWindow:
    """Tag scores of one window of a text."""

    window: Window
    first_token: int
    """Index of the window's first token in the text, without special tokens."""
    score_TC: npt.NDArray[np.float32]


class Tagger(PerToken):
    """Tags the words of texts of any length; a long text is read in overlapping windows."""

    def tag(
        self, texts: Sequence[str], *, strategy: Aggregation = "simple", ignored: Collection[str] = (OUTSIDE,)
    ) -> list[Tagged]:
        """Return the entities of each text in order, without those of `ignored` types.

        Raises:
            TextError: a text is not valid Unicode.
        """
        return self.entities(texts, self.answers(self.tagging(texts)), strategy=strategy, ignored=ignored)

    def tagging(self, texts: Sequence[str], *, overlap: int | None = None) -> Question[TaggedWindow]:
        """Return the `Question` that `tag` would run; `entities` combines its answers. Raises the same errors as `tag`.

        Args:
            texts: texts to tag.
            overlap: tokens that adjacent windows of a long text share, at most half of a window; None: a quarter.
        """
        windows, step = self.windows(texts, overlap=overlap), self._room - self._common(overlap)

        def read(position: int, logits_LC: Rows) -> TaggedWindow:
            window = windows[position]
            is_text_L = np.array(window.encoding.special_tokens_mask) == 0
            return TaggedWindow(window, window.place * step, softmax(logits_LC[is_text_L]))

        return Question([window.read for window in windows], "logits", read)

    def windows(self, texts: Sequence[str], *, overlap: int | None = None) -> list[Window]:
        """Return the windows of each text; raises as `tag`."""
        return self.tokenizer.windows(texts, longest=self.manifest.max_length, overlap=self._common(overlap))

    def entities(
        self,
        texts: Sequence[str],
        windows: Sequence[TaggedWindow],
        *,
        strategy: Aggregation = "simple",
        ignored: Collection[str] = (OUTSIDE,),
    ) -> list[Tagged]:
        """Return the entities of each text, from the tag scores of its windows."""
        return [
            aggregated(tokens, self.manifest.labels, strategy, self.tokenizer.joined, ignored)
            for tokens in self.scored_tokens(texts, windows)
        ]

    def scored_tokens(self, texts: Sequence[str], windows: Sequence[TaggedWindow]) -> list[list[ScoredToken]]:
        """Return the scored tokens of each text; a token in two windows gets its score from the one with more text
        around it."""
        chosen: dict[int, dict[int, tuple[int, ScoredToken]]] = defaultdict(dict)
        for tagged in windows:
            kept = chosen[tagged.window.number]
            for around, token in self._tokens(texts[tagged.window.number], tagged):
                if token.index not in kept or around > kept[token.index][0]:
                    kept[token.index] = (around, token)
        return [[kept[index][1] for index in sorted(kept)] for kept in (chosen[number] for number in range(len(texts)))]

    def usual(self, texts: Sequence[str]) -> AnyQuestion:
        return self.tagging(texts)

    def records(self, texts: Sequence[str], *, top_k: int, truncate: bool) -> Records:
        """Return all entities of each text; `top_k` and `truncate` have no effect."""
        return [{"entities": [asdict(entity) for entity in found]} for found in self.tag(texts)]

    @property
    def _room(self) -> int:
        """Number of tokens of the text in a window, without special tokens."""
        return self.manifest.max_length - self.tokenizer.num_added(pairs=False)

    def _common(self, overlap: int | None) -> int:
        return min(self.manifest.max_length // 4 if overlap is None else overlap, self._room // 2)

    def _tokens(self, text: str, tagged: TaggedWindow) -> Iterator[tuple[int, ScoredToken]]:
        """Yield each token that is not special, with the number of tokens on its shorter side of the window."""
        encoding = tagged.window.encoding
        ids, tokens, offsets = encoding.ids, encoding.tokens, encoding.offsets  # each access builds a new list
        places = [place for place, special in enumerate(encoding.special_tokens_mask) if not special]
        for number, (place, score_C) in enumerate(zip(places, tagged.score_TC, strict=True)):
            start, end = offsets[place]
            is_unknown = ids[place] == self.tokenizer.unknown_id
            yield (
                min(number, len(places) - 1 - number),
                ScoredToken(
                    text=text[start:end] if is_unknown else tokens[place],
                    index=places[0] + tagged.first_token + number,
                    start=start,
                    end=end,
                    continues_word=not is_unknown and self._continues_word(tokens[place], text, start, end),
                    score_C=score_C,
                ),
            )

    def _continues_word(self, token: str, text: str, start: int, end: int) -> bool:
        """Whether a token continues a word, as in transformers.

        With `##`, such a token is longer than its text; otherwise, no space precedes it.
        """
        if self.tokenizer.continues_words:
            return len(token) != end - start
        return start > 0 and " " not in text[start - 1 : start + 1]
