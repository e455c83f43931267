"""Causal language model: continues texts token by token, and embeds texts.

Each new token is one more run of the graph over the whole text so far. At the sizes that are trained here, a run over
a few hundred tokens takes a few milliseconds, and a server shares the runs of all requests.

Shapes: K likeliest tokens that the graph gives, L tokens.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from typing import Literal

import numpy as np

from clozeline.inference.language import TOP, LanguageModel, named
from clozeline.inference.open_model import AnyQuestion, Dialogue, Question, Records, Round, Rows, check_top_k
from clozeline.inference.tokenization import TextTooLongError, TokenizedText
from clozeline.system.errors import DataError

# Ids of the likeliest next tokens with their probabilities, best first.
Candidates = list[tuple[int, float]]
Finish = Literal["stop", "length"]
# One new token of a text costs about as much as tokenizing so many characters.
_TURN_CHARACTERS = 256


@dataclass(frozen=True, slots=True)
class Decoding:
    """How a text is continued."""

    max_tokens: int = 16  # maximum number of new tokens
    temperature: float = 0.0  # 0 takes the most likely token (greedy); 1 draws with the probabilities of the model
    # Draws come from the most likely tokens up to this total probability (nucleus sampling, Holtzman 2020).
    top_p: float = 1.0
    seed: int = 0  # a draw depends on this seed and the tokens so far, and on nothing else
    stop: tuple[str, ...] = ()  # the continuation ends before the first of these strings

    def __post_init__(self) -> None:
        """Raise DataError if a value is out of bounds."""
        bounds = (
            ("max_tokens", self.max_tokens >= 1, self.max_tokens, "at least 1"),
            ("temperature", 0 <= self.temperature <= 100, self.temperature, "from 0 to 100"),
            ("top_p", 0 < self.top_p <= 1, self.top_p, "above 0, at most 1"),
            ("seed", 0 <= self.seed < 2**63, self.seed, "from 0 to 2^63 - 1"),
            ("stop", all(self.stop), self.stop, "strings that are not empty"),
        )
        for name, is_right, given, expected in bounds:
            if not is_right:
                raise DataError(f"`{name}` is out of bounds", given=given, expected=expected, do=f"change `{name}`")


@dataclass(frozen=True, slots=True)
class Completion:
    """The continuation of one text."""

    text: str
    num_read: int  # number of tokens of the given text, special ones included; what was cut off is not counted
    tokens: tuple[int, ...]  # ids of the new tokens
    scores: tuple[float, ...]  # probability of each new token after the tokens before it
    # `stop`: the model ended the text, or a stop string came. `length`: no more tokens were allowed.
    finish_reason: Finish


@dataclass(slots=True)
class Draft:
    """A text while it is being continued."""

    read: TokenizedText
    max_tokens: int
    tokens: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    finish: Finish | None = None
    text: str = ""  # the continuation, once it is finished

    @property
    def so_far(self) -> TokenizedText:
        return replace(self.read, ids_L=np.append(self.read.ids_L, np.array(self.tokens, dtype=np.int64)))

    @property
    def later_tokens(self) -> int:
        """Number of tokens in all runs after the first, if the text does not end before `max_tokens`."""
        later = self.max_tokens - 1
        return later * len(self.read) + later * self.max_tokens // 2


class Completer(LanguageModel):
    """Continues texts, and embeds them."""

    part = "completion"

    def complete(
        self, texts: Sequence[str], decoding: Decoding | None = None, *, truncate: bool = False
    ) -> list[Completion]:
        """Return the continuation of each text.

        With `truncate`, the beginning of a text that is too long is cut off.

        Raises:
            TextTooLongError: a text leaves no room for a new token, and `truncate` is not set.
        """
        return self.converse(self.completing(texts, decoding or Decoding(), truncate=truncate))

    def completing(
        self, texts: Sequence[str], decoding: Decoding, *, truncate: bool = False, later_tokens: int = 0
    ) -> Dialogue[list[Completion]]:
        """Return the dialogue that `complete` runs; `later_tokens` are those of the turns that follow it.

        Each new token is a round of its own, so that the texts of many requests grow together. The dialogue raises the
        same errors as `complete`.
        """
        drafts = self.drafts(texts, decoding, truncate=truncate)
        later_tokens += sum(draft.later_tokens for draft in drafts)
        while unfinished := [draft for draft in drafts if draft.finish is None]:
            asked = self.next_tokens([draft.so_far for draft in unfinished])
            (answers,) = yield Round([asked], later_tokens, _TURN_CHARACTERS * len(texts))
            for draft, candidates in zip(unfinished, answers, strict=True):
                self.extend(draft, candidates, decoding)
        return [self.completion(draft) for draft in drafts]

    def drafts(self, texts: Sequence[str], decoding: Decoding, *, truncate: bool = False) -> list[Draft]:
        """Return a draft of each text without new tokens. Raises what `complete` raises."""
        return [self._draft(number, text, decoding, truncate) for number, text in enumerate(texts)]

    def next_tokens(self, read: Sequence[TokenizedText], *, top_k: int | None = None) -> Question[Candidates]:
        """Return the question for the likeliest next tokens of each text; `top_k` None: as many as the graph gives.

        Special tokens are left out, except the one that ends a text.
        """
        never = tuple(one for one in self.manifest.special_tokens.ids if one != self._end_id)

        def best(position: int, rows_K2: Rows) -> Candidates:
            return named(rows_K2, top_k or self.num_named, never)

        return Question(read, TOP, best)

    def following(self, texts: Sequence[str], *, top_k: int = 5, truncate: bool = False) -> Question[Candidates]:
        """Return the question for the `top_k` likeliest next tokens of each text.

        Raises:
            DataError: `top_k` is below 1.
            TextTooLongError: as `complete`.
        """
        check_top_k(top_k)
        drafts = self.drafts(texts, Decoding(max_tokens=1), truncate=truncate)
        return self.next_tokens([draft.read for draft in drafts], top_k=top_k)

    def extend(self, draft: Draft, candidates: Candidates, decoding: Decoding) -> None:
        """Add the next token to `draft`, and finish it if nothing is to follow."""
        token_id, score = _chosen(candidates, decoding, draft.so_far)
        if token_id == self._end_id:
            draft.finish = "stop"
        else:
            draft.tokens.append(token_id)
            draft.scores.append(score)
            draft.finish = "length" if len(draft.tokens) == draft.max_tokens else None
        if draft.finish or decoding.stop:
            draft.text = self._continuation(draft)
        cuts = [place for place in map(draft.text.find, decoding.stop) if place >= 0]
        if cuts:
            draft.text, draft.finish = draft.text[: min(cuts)], "stop"

    def completion(self, draft: Draft) -> Completion:
        """Return the continuation of a finished draft."""
        assert draft.finish is not None
        return Completion(draft.text, len(draft.read), tuple(draft.tokens), tuple(draft.scores), draft.finish)

    @staticmethod
    def confidence(completion: Completion) -> Iterable[float]:
        return completion.scores

    def usual(self, texts: Sequence[str]) -> AnyQuestion:
        """Return the question for the next token of each text."""
        return self.following(texts, truncate=True)

    def recording(self, given: Sequence[str], *, top_k: int, truncate: bool) -> Dialogue[Records]:
        """Embed every text and continue it greedily; `top_k` has no effect."""
        embedding = self.embedding(given, truncate=truncate)
        num_tokens = sum(map(len, embedding.texts))
        completions = yield from self.completing(given, Decoding(), truncate=truncate, later_tokens=num_tokens)
        (vectors,) = yield Round([embedding])
        pairs = zip(vectors, completions, strict=True)
        return [{"embedding": vector_H, "completion": one} for vector_H, one in pairs]

    @cached_property
    def _around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Special tokens before and after a text."""
        (pieces,) = self.tokenizer.pieces(["a"], add_special_tokens=True)
        is_special = [piece.special for piece in pieces]
        first = is_special.index(False)
        last = len(pieces) - is_special[::-1].index(False)
        return tuple(piece.id for piece in pieces[:first]), tuple(piece.id for piece in pieces[last:])

    @property
    def _end_id(self) -> int | None:
        after = self._around[1]
        return after[0] if after else None

    def _draft(self, number: int, text: str, decoding: Decoding, truncate: bool) -> Draft:
        (pieces,) = self.tokenizer.pieces([text], add_special_tokens=False)
        before, inner = self._around[0], [piece.id for piece in pieces]
        room = self.manifest.max_length - len(before) - 1
        if len(inner) > room:
            if not truncate:
                raise TextTooLongError(
                    "leaves no room for a new token",
                    number=number,
                    given=f"{len(inner):,} tokens: {text[:60]!r}…",
                    expected=f"at most {room:,} tokens",
                    do="shorten the text, or set `truncate` to cut off its beginning",
                )
            inner = inner[len(inner) - max(room + 1 - min(decoding.max_tokens, room // 2 + 1), 1) :]
        read = TokenizedText(np.array([*before, *inner], dtype=np.int64), ())
        return Draft(read, min(decoding.max_tokens, self.manifest.max_length - len(read)))

    def _continuation(self, draft: Draft) -> str:
        """Return the text of the new tokens, which may continue the last word of the given text."""
        given = draft.read.ids_L.tolist()
        whole = self.tokenizer.decode([*given, *draft.tokens], skip_special_tokens=True)
        before = self.tokenizer.decode(given, skip_special_tokens=True)
        if whole.startswith(before):
            return whole[len(before) :]
        return self.tokenizer.decode(draft.tokens, skip_special_tokens=True)


def _chosen(candidates: Candidates, decoding: Decoding, so_far: TokenizedText) -> tuple[int, float]:
    """Return the next token and its probability: the likeliest, or one that is drawn."""
    if decoding.temperature == 0:
        return candidates[0]
    score_K = np.array([score for _, score in candidates], dtype=np.float64)
    is_kept_K = np.cumsum(score_K) - score_K < decoding.top_p * score_K.sum()
    # The division before the exponential keeps small temperatures from overflowing.
    weight_K = np.exp(np.log(np.maximum(score_K, 1e-30) / score_K[0]) / decoding.temperature) * is_kept_K
    place = int(np.searchsorted(np.cumsum(weight_K), _uniform(decoding.seed, so_far) * weight_K.sum(), side="right"))
    return candidates[min(place, int(is_kept_K.sum()) - 1)]


def _uniform(seed: int, so_far: TokenizedText) -> float:
    """Return a number in [0, 1) that depends on the seed and the tokens alone."""
    digest = blake2b(so_far.ids_L.astype("<i8").tobytes(), key=seed.to_bytes(8, "little"), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64
