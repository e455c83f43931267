"""Labels of a text or of a pair of texts, with their scores, and of tokens: the entities of a text.

Tagged tokens are grouped into entities as in transformers' token-classification pipeline.

Shapes: C classes or tags, L tokens of a window, T of them without special tokens.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, Field

from clozeline.inference import open_model, tokenization
from clozeline.inference.fields import OUTSIDE, UNDESCRIBED, Aggregation, TagReading
from clozeline.records.package import ScoreFunction

# Labels that mean that the second text of a pair goes with the first, including those of GLUE's presets.
_RELEVANT = ("relevant", "entailment", "equivalent", "duplicate", "paraphrase", "similar", "yes", "true", "1")

_SCORE = Field(
    description="Probability among all labels, or of this label alone if a text can have several; "
    "`function_to_apply` changes it."
)

Joined = Callable[[Sequence[str]], str]
# Other keys are forbidden, so that a list of entities and one of tokens differ.
_IN_ANSWER: ConfigDict = {**UNDESCRIBED, "extra": "forbid"}
_Score = Annotated[float, Field(ge=0, le=1.001, description="Mean probability of the tag over the tokens or words.")]
_INDEX = Field(ge=0, description="Position of the token in the text as the model reads it, including special tokens.")
_Start = Annotated[int, Field(ge=0, description="First character in the text.")]
_End = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True)
class LabelScore:
    """One label of a text, with the fields of Hugging Face's text-classification task."""

    __pydantic_config__ = UNDESCRIBED

    label: str
    # Score by the model's score function: a probability, 0-1, or the logit of a regression.
    score: Annotated[float, _SCORE]


class Classifier(open_model.OpenModel):
    """Classifies texts or pairs of texts."""

    part = "labels"

    @property
    def relevant_label(self) -> str | None:
        """Label of a pair model for texts that belong together, or its only label; None if it has no such label."""
        labels = self.manifest.labels
        if not self.manifest.reads_pairs or len(labels) == 1:
            return labels[0] if self.manifest.reads_pairs else None
        return next((label for label in labels if label.lower() in _RELEVANT), None)

    @property
    def relevance_function(self) -> ScoreFunction:
        """Function from logits to a relevance of 0-1: the one used in training, or sigmoid for a regression."""
        function = self.manifest.label_scores
        return "sigmoid" if function == "none" else function

    def classify(
        self, texts: Sequence[tokenization.Given], *, top_k: int = 1, truncate: bool = False
    ) -> list[list[LabelScore]]:
        """Return the `top_k` likeliest labels of each text (all if there are fewer), best first.

        Raises:
            TextTooLongError: a text is longer than `manifest.max_length` tokens and `truncate` is not set.
            NotAPairError: an item is a single text, and the model was trained on pairs.
            DataError: `top_k` is below 1.
        """
        return self.answers(self.classifying(texts, top_k=top_k, truncate=truncate))

    def classifying(
        self,
        texts: Sequence[tokenization.Given],
        *,
        top_k: int = 1,
        truncate: bool = False,
        function: ScoreFunction | None = None,
    ) -> open_model.Question[list[LabelScore]]:
        """Return the `Question` that `classify` would run. Raises the same errors as `classify`.

        `function` computes the scores; None: the function used in training.
        """
        open_model.check_top_k(top_k)
        if self.manifest.reads_pairs:
            _check_pairs(texts)
        to_scores = function or self.manifest.label_scores

        def read(position: int, logits_C: open_model.Rows) -> list[LabelScore]:
            best = open_model.scored(logits_C, top_k, to_scores)
            return [LabelScore(self.manifest.labels[place], score) for place, score in best]

        return open_model.Question(self.tokenize(texts, truncate=truncate), "logits", read)

    @staticmethod
    def confidence(ranked: Sequence[LabelScore]) -> Iterable[float]:
        return (one.score for one in ranked[:1])

    def usual(self, texts: Sequence[str]) -> open_model.AnyQuestion:
        given = [(text, text) for text in texts] if self.manifest.reads_pairs else texts
        return self.classifying(given, truncate=True)

    def recording(
        self, given: Sequence[tokenization.Given], *, top_k: int, truncate: bool
    ) -> open_model.Dialogue[open_model.Records]:
        labelled = yield from open_model.alone(lambda: self.classifying(given, top_k=top_k, truncate=truncate))
        return [{"labels": labels} for labels in labelled]


def _check_pairs(given: Sequence[tokenization.Given]) -> None:
    """Refuse single texts: a pair model would give them confident but meaningless labels."""
    for number, one in enumerate(given):
        if isinstance(one, str):
            raise tokenization.NotAPairError(
                "is a single text, but the model reads pairs",
                number=number,
                given=repr(one[:60]),
                expected="a pair of texts, because the model was trained on pairs",
                do='send both texts: {"text": "…", "text_pair": "…"}; to /predict ["…", "…"]; in Python ("…", "…")',
            )


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """One token of a text with the probability of each tag."""

    text: str
    index: int  # position of the token in the text as the model reads it, including special tokens
    start: int
    end: int
    continues_word: bool
    score_C: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TaggedToken:
    """Answer without aggregation, with the fields of Hugging Face's token-classification task."""

    __pydantic_config__ = _IN_ANSWER

    entity: str
    score: _Score
    index: Annotated[int, _INDEX]
    word: str
    start: _Start
    end: _End


@dataclass(frozen=True, slots=True)
class Entity:
    """Answer with aggregation, with the fields of Hugging Face's token-classification task."""

    __pydantic_config__ = _IN_ANSWER

    entity_group: str
    score: _Score
    word: str
    start: _Start
    end: _End


Tagged = list[Entity] | list[TaggedToken]


def aggregated(
    tokens: Sequence[ScoredToken],
    tags: Sequence[str],
    strategy: Aggregation,
    joined: Joined,
    ignored: Collection[str] = (OUTSIDE,),
) -> Tagged:
    """Return the tagged tokens (strategy `none`) or the entities, without those whose tag or type is `ignored`.

    Args:
        tokens: tokens of one text, in order.
        tags: names of the tags, in the order of the scores.
        strategy: how tokens are grouped.
        joined: function that joins tokens to readable text.
        ignored: tags for `none`, otherwise types without B- or I-.
    """
    of_words = [_of_word(word, tags, strategy, joined) for word in _words(tokens, strategy)]
    if strategy == "none":
        return [token for token in of_words if token.entity not in ignored]
    entities = (_entity(group, joined) for group in _groups(of_words))
    return [entity for entity in entities if entity.entity_group not in ignored]


def parted(tag: str) -> tuple[str, str]:
    """Return prefix and type; a tag without a prefix counts as I, which continues an entity of its type."""
    prefix, _, name = tag.partition("-")
    return (prefix, name) if prefix in ("B", "I") and name else ("I", tag)


@dataclass(frozen=True, slots=True)
class Extent:
    """An entity by words: its type and the indices of its first and last word."""

    type: str
    first: int
    last: int


def extents(tags: Sequence[str]) -> list[Extent]:
    """Return the entities in the tags of words; malformed sequences are read as by the CoNLL-2003 scorer."""
    found: list[Extent] = []
    open_type = None
    for place, tag in enumerate(tags):
        prefix, name = parted(tag)
        if tag == OUTSIDE:
            open_type = None
        elif prefix == "I" and name == open_type:
            found[-1] = Extent(name, found[-1].first, place)
        else:
            found.append(Extent(name, place, place))
            open_type = name
    return found


def _words(tokens: Sequence[ScoredToken], strategy: Aggregation) -> Iterator[list[ScoredToken]]:
    word: list[ScoredToken] = []
    for token in tokens:
        if word and not (token.continues_word and strategy not in ("none", "simple")):
            yield word
            word = []
        word.append(token)
    if word:
        yield word


def _surest(scores_TC: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    surest_C: npt.NDArray[np.float32] = scores_TC[scores_TC.max(axis=1).argmax()]
    return surest_C


# Functions from the scores of a word's tokens to the scores of the word.
_SCORES: Mapping[Aggregation, Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]] = {
    "none": lambda scores_TC: scores_TC[0],
    "simple": lambda scores_TC: scores_TC[0],
    "first": lambda scores_TC: scores_TC[0],
    "average": lambda scores_TC: scores_TC.mean(axis=0),
    "max": _surest,
}


def _of_word(word: Sequence[ScoredToken], tags: Sequence[str], strategy: Aggregation, joined: Joined) -> TaggedToken:
    score_C = _SCORES[strategy](np.stack([token.score_C for token in word]))
    best = int(score_C.argmax())
    texts = [token.text for token in word]
    text = texts[0] if strategy in ("none", "simple") else joined(texts)
    return TaggedToken(tags[best], float(score_C[best]), word[0].index, text, word[0].start, word[-1].end)


def _groups(tokens: Sequence[TaggedToken]) -> Iterator[list[TaggedToken]]:
    group: list[TaggedToken] = []
    for token in tokens:
        prefix, name = parted(token.entity)
        if group and (prefix == "B" or name != parted(group[-1].entity)[1]):
            yield group
            group = []
        group.append(token)
    if group:
        yield group


def _entity(group: Sequence[TaggedToken], joined: Joined) -> Entity:
    name = group[0].entity.split("-", 1)[-1]
    score = float(np.mean([token.score for token in group]))
    return Entity(name, score, joined([token.word for token in group]), group[0].start, group[-1].end)


@dataclass(frozen=True, slots=True)
class TaggedWindow:
    """Tag scores of one window of a text."""

    window: tokenization.Window
    first_token: int  # index of the window's first token in the text, without special tokens
    score_TC: npt.NDArray[np.float32]


class Tagger(open_model.PerToken):
    """Tags the words of texts of any length; a long text is read in overlapping windows."""

    part = "entities"

    def tag(
        self, texts: Sequence[str], *, strategy: Aggregation = "simple", ignored: Collection[str] = (OUTSIDE,)
    ) -> list[Tagged]:
        """Return the entities of each text in order, without those of `ignored` types.

        Raises:
            TextError: a text is not valid Unicode.
        """
        return self.converse(self.tags(texts, TagReading(aggregation_strategy=strategy), ignored))

    def tags(
        self, texts: Sequence[str], reading: TagReading, ignored: Collection[str] = (OUTSIDE,)
    ) -> open_model.Dialogue[list[Tagged]]:
        """Return the dialogue that `tag` runs. It raises the same errors as `tag`."""
        asked = self.tagging(texts, overlap=reading.stride)
        (windows,) = yield open_model.Round([asked], reading_characters=sum(map(len, texts)))
        labels, strategy, joined = self.manifest.labels, reading.aggregation_strategy, self.tokenizer.joined
        return [aggregated(tokens, labels, strategy, joined, ignored) for tokens in self.scored_tokens(texts, windows)]

    def tagging(self, texts: Sequence[str], *, overlap: int | None = None) -> open_model.Question[TaggedWindow]:
        """Return the question about the windows of each text. Raises the same errors as `tag`.

        Args:
            texts: texts to tag.
            overlap: tokens that adjacent windows of a long text share, at most half of a window; None: a quarter.
        """
        windows, step = self.windows(texts, overlap=overlap), self._room - self._common(overlap)

        def read(position: int, logits_LC: open_model.Rows) -> TaggedWindow:
            window = windows[position]
            is_text_L = np.array(window.encoding.special_tokens_mask) == 0
            return TaggedWindow(window, window.place * step, open_model.softmax(logits_LC[is_text_L]))

        return open_model.Question([window.read for window in windows], "logits", read)

    def windows(self, texts: Sequence[str], *, overlap: int | None = None) -> list[tokenization.Window]:
        """Return the windows of each text; raises as `tag`."""
        return self.tokenizer.windows(texts, longest=self.manifest.max_length, overlap=self._common(overlap))

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

    @staticmethod
    def confidence(entities: Tagged) -> Iterable[float]:
        return (one.score for one in entities)

    def usual(self, texts: Sequence[str]) -> open_model.AnyQuestion:
        return self.tagging(texts)

    def recording(self, given: Sequence[str], *, top_k: int, truncate: bool) -> open_model.Dialogue[open_model.Records]:
        """Give all entities of each text; `top_k` and `truncate` have no effect."""
        tagged = yield from self.tags(given, TagReading())
        return [{"entities": entities} for entities in tagged]

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
