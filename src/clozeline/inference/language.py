"""Models that embed texts, and language models, which also name the likeliest tokens at some positions.

An embedding is a vector for each text, or for each of its tokens. The graph itself names the likeliest tokens. A masked
language model gives them for the masks of a text.

Shapes: H hidden, L tokens of a text, T texts, M masks, P predicted positions, V vocabulary; K likeliest tokens that the
graph gives; X is K or V.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, Field

from clozeline.inference import open_model, tokenization
from clozeline.system.errors import ArtifactError, ParamsError

# Output with the vector of each token, [B, L, H], under transformers' name for it.
HIDDEN = "last_hidden_state"

# Outputs with the likeliest tokens of each predicted position and their probabilities, best first: [P, K].
TOP_IDS, TOP_SCORES = "top_ids", "top_scores"
# Name of the output that stacks both on its last axis; token ids are too small to be rounded in float32.
TOP = "top"

_MASK = "[MASK]"


class Embedder(open_model.OpenModel):
    """Embeds texts and their tokens."""

    def embed(
        self, texts: Sequence[str], *, truncate: bool = False, prompt_name: str | None = None
    ) -> npt.NDArray[np.float32]:
        """Return a vector of length 1 for each text, [T, H]: its last hidden states, pooled as the model was trained.

        Args:
            prompt_name: one of `manifest.prompts`, put before each text; None: `manifest.default_prompt`.

        Raises:
            ParamsError: the model has no such prompt.
            TextTooLongError: a text is longer than `manifest.max_length` tokens and `truncate` is not set.
        """
        embeddings = self.answers(self.embedding(texts, truncate=truncate, prompt_name=prompt_name))
        return np.array(embeddings, dtype=np.float32).reshape(len(texts), self.manifest.hidden_size)

    def embedding(
        self, texts: Sequence[str], *, truncate: bool = False, prompt_name: str | None = None
    ) -> open_model.Question[open_model.Rows]:
        """Return the `Question` that `embed` would run. Raises the same errors as `embed`."""
        return open_model.Question(
            self.tokenize(self._prompted(texts, prompt_name), truncate=truncate),
            "sentence_embedding",
            lambda _, embedding_H: embedding_H,
        )

    @property
    def embeds_tokens(self) -> bool:
        """Whether the graph gives a vector for each token; those of older versions do not."""
        return any(spec.name == HIDDEN for spec in self.manifest.outputs)

    def tokens(self, texts: Sequence[str], *, truncate: bool = False) -> list[open_model.Rows]:
        """Return the last hidden states of each text, [L, H], special tokens included.

        Raises:
            ArtifactError: the package was exported by an older version, without this output.
            TextTooLongError: a text is longer than `manifest.max_length` tokens and `truncate` is not set.
        """
        return self.answers(self.embedding_tokens(texts, truncate=truncate))

    def embedding_tokens(
        self, texts: Sequence[str], *, truncate: bool = False, prompt_name: str | None = None
    ) -> open_model.Question[open_model.Rows]:
        """Return the `Question` that `tokens` would run. Raises the same errors as `tokens`."""
        if not self.embeds_tokens:
            raise ArtifactError(
                f"the package has no {HIDDEN}, only {', '.join(spec.name for spec in self.manifest.outputs)}",
                do="export the model again with this version (`dvc repro export@NAME`)",
            )
        read = self.tokenize(self._prompted(texts, prompt_name), truncate=truncate)
        return open_model.Question(read, HIDDEN, lambda _, hidden_LH: hidden_LH)

    def _prompted(self, texts: Sequence[str], name: str | None) -> Sequence[str]:
        """Return the texts with their prompt before each."""
        prompts, name = self.manifest.prompts, name or self.manifest.default_prompt
        if name is None:
            return texts
        if name not in prompts:
            raise ParamsError(
                f"the model has no prompt {name}, only {', '.join(prompts) or 'none'}",
                do="correct the name, or leave it out",
            )
        return [f"{prompts[name]}{text}" for text in texts]

    def split(self, batch: open_model.TextBatch, output: str, values: npt.NDArray[np.float32]) -> list[open_model.Rows]:
        if output != HIDDEN:
            return super().split(batch, output, values)
        return open_model.without_padding(batch, values)

    def usual(self, texts: Sequence[str]) -> open_model.AnyQuestion:
        return self.embedding(texts, truncate=True)

    def recording(self, given: Sequence[str], *, top_k: int, truncate: bool) -> open_model.Dialogue[open_model.Records]:
        (vectors,) = yield open_model.Round([self.embedding(given, truncate=truncate)])
        return [{"embedding": vector_H} for vector_H in vectors]


class LanguageModel(Embedder):
    """A model whose graph gives the likeliest tokens."""

    @property
    def num_named(self) -> int:
        """K; 0 for an older package, whose graph does not give the likeliest tokens."""
        shapes = (output.shape for output in self.manifest.outputs if output.name == TOP_IDS)
        return next((size for _, size in shapes if isinstance(size, int)), 0)

    def _run(self, batch: open_model.TextBatch, *outputs: str) -> list[npt.NDArray[np.float32]]:
        if outputs != (TOP,):
            return super()._run(batch, *outputs)
        ids_PK, scores_PK = super()._run(batch, TOP_IDS, TOP_SCORES)
        return [np.stack([ids_PK.astype(np.float32), scores_PK], axis=2)]


def named(rows_K2: open_model.Rows, top_k: int, but: Sequence[int] = ()) -> list[tuple[int, float]]:
    """Return the first `top_k` tokens that the graph gives with their probabilities, without the ids `but`."""
    found = [(int(token_id), float(score)) for token_id, score in rows_K2[: top_k + len(but)]]
    return [one for one in found if one[0] not in but][:top_k]


@dataclass(frozen=True, slots=True)
class Filled:
    """One candidate for one mask, with the fields of Hugging Face's fill-mask task."""

    __pydantic_config__ = ConfigDict(title="Candidate", json_schema_extra={"description": "One token for one mask."})

    score: Annotated[float, Field(ge=0, le=1, description="Probability over the vocabulary, or over the targets.")]
    token: Annotated[int, Field(ge=0, description="Token id.")]
    token_str: str
    sequence: Annotated[str, Field(description="The text with this mask filled; other masks stay.")]


class OpenEncoder(LanguageModel):
    """Fills masks and embeds texts."""

    part = "masks"

    def fill(
        self, texts: Sequence[str], *, top_k: int = 5, targets: Sequence[str] | None = None, truncate: bool = False
    ) -> list[list[list[Filled]]]:
        """Return the `top_k` likeliest tokens, best first, for each mask of each text.

        With `targets`, only these compete; each has to be one token of the vocabulary.

        Raises:
            TextError: a text has no mask, is too long, or lost a mask to truncation.
            TargetError: a target is not one token.
            DataError: `top_k` is below 1.
        """
        return self.answers(self.filling(texts, top_k=top_k, targets=targets, truncate=truncate))

    def filling(
        self, texts: Sequence[str], *, top_k: int = 5, targets: Sequence[str] | None = None, truncate: bool = False
    ) -> open_model.Question[list[list[Filled]]]:
        """Return the `Question` that `fill` would run. Raises the same errors as `fill`."""
        open_model.check_top_k(top_k)
        target_ids = self._target_ids(targets) if targets is not None else None
        tokenized = self.tokenize(texts, truncate=truncate)
        self._check_masks(texts, tokenized)
        is_named = target_ids is None and top_k <= self.num_named

        def best(rows_X: open_model.Rows) -> list[tuple[int, float]]:
            return named(rows_X, top_k) if is_named else _likeliest(rows_X, top_k, target_ids)

        def read(position: int, rows_MX: open_model.Rows) -> list[list[Filled]]:
            return [
                [self._filled(texts[position], span, *candidate) for candidate in best(rows_X)]
                for span, rows_X in zip(tokenized[position].mask_spans, rows_MX, strict=True)
            ]

        num_candidates = top_k if targets is None else min(top_k, len(targets))
        repeated = sum(len(text) * len(one.mask_spans) for text, one in zip(texts, tokenized, strict=True))
        output = TOP if is_named else "logits"
        return open_model.Question(tokenized, output, read, most_characters=num_candidates * repeated)

    @staticmethod
    def confidence(masks: Sequence[Sequence[Filled]]) -> Iterable[float]:
        return (words[0].score for words in masks)

    def with_own_masks(self, texts: Sequence[str]) -> list[str]:
        """Return `texts` with `[MASK]` replaced by the model's own mask token, such as `<mask>`."""
        mask_token = self.manifest.special_tokens.mask_token
        return [text.replace(_MASK, mask_token) for text in texts] if mask_token else list(texts)

    def usual(self, texts: Sequence[str]) -> open_model.AnyQuestion:
        """Return the question of `fill` if every text has a mask, otherwise that of `embed`."""
        mask_token = self.manifest.special_tokens.mask_token
        if mask_token and all(mask_token in text for text in texts):
            return self.filling(texts, truncate=True)
        return self.embedding(texts, truncate=True)

    def recording(self, given: Sequence[str], *, top_k: int, truncate: bool) -> open_model.Dialogue[open_model.Records]:
        """Embed every text and fill its masks; a text that loses a mask to truncation is only embedded."""
        embedding = self.embedding(given, truncate=truncate)  # first, so that errors count all texts
        mask_token = self.manifest.special_tokens.mask_token
        own = {
            place: text for place, text in enumerate(self.with_own_masks(given)) if mask_token and mask_token in text
        }
        read = zip(own.items(), self.tokenize(list(own.values()), truncate=truncate), strict=True)
        masked = dict(item for item, tokens in read if tokens.mask_spans and not tokens.num_masks_cut_off)
        filling = [self.filling(list(masked.values()), top_k=top_k, truncate=truncate)] if masked else []
        vectors, *filled = yield open_model.Round([embedding, *filling])
        masks = dict(zip(masked, chain(*filled), strict=True))
        return [{"embedding": vector_H, "masks": masks.get(place, [])} for place, vector_H in enumerate(vectors)]

    def split(self, batch: open_model.TextBatch, output: str, values: npt.NDArray[np.float32]) -> list[open_model.Rows]:
        if output not in ("logits", TOP):
            return super().split(batch, output, values)
        # The graph gives masks row by row, so the masks of a text follow each other.
        num_masks_B = (batch.input_ids_BL == self.manifest.special_tokens.mask_id).sum(axis=1)
        return np.split(values, np.cumsum(num_masks_B)[:-1])

    def _filled(self, text: str, span: tuple[int, int], token_id: int, score: float) -> Filled:
        token = self.tokenizer.token_text(token_id)
        return Filled(score, token_id, token, self.tokenizer.with_token(text, span, token))

    def _target_ids(self, targets: Sequence[str]) -> npt.NDArray[np.int64]:
        ids = {target: self.tokenizer.ids_of(target) for target in targets}
        specials = set(self.manifest.special_tokens.ids)  # an unknown word is one token too: [UNK]
        wrong = [target for target in targets if len(ids[target]) != 1 or specials & set(ids[target])]
        if wrong or not targets:
            raise tokenization.TargetError(
                "a target is not one token of the vocabulary" if wrong else "no target was given",
                given=", ".join(f"{target!r} ({len(ids[target])} tokens)" for target in wrong[:5]) or "an empty list",
                expected="words that are one token each",
                do="remove these targets, or leave `targets` out",
            )
        return np.unique([ids[target][0] for target in targets])

    def _check_masks(self, texts: Sequence[str], tokenized: Sequence[tokenization.TokenizedText]) -> None:
        mask_token = self.manifest.special_tokens.mask_token
        for number, text in enumerate(tokenized):
            if not text.mask_spans:
                raise tokenization.NoMaskError(
                    f"has no mask within the {self.manifest.max_length:,} tokens that the model reads",
                    number=number,
                    given=f"{texts[number][:60]!r}",
                    expected=f"{mask_token} at least once",
                    do=f"write {mask_token} where the model has to fill in a word",
                )
            if text.num_masks_cut_off:
                num_masks = len(text.mask_spans) + text.num_masks_cut_off
                raise tokenization.MaskCutOffError(
                    f"has masks beyond the {self.manifest.max_length:,} tokens that the model reads",
                    number=number,
                    given=f"{num_masks} masks, the last {text.num_masks_cut_off} cut off: {texts[number][:60]!r}…",
                    expected="every mask within the tokens that the model reads",
                    do="split the text, or remove the masks at its end",
                )


def _likeliest(
    logits_V: open_model.Rows, top_k: int, target_ids: npt.NDArray[np.int64] | None
) -> list[tuple[int, float]]:
    """Return the `top_k` likeliest tokens from the logits of the vocabulary, among `target_ids` only if given."""
    if target_ids is None:
        return open_model.likeliest(logits_V, top_k)
    return [(int(target_ids[place]), score) for place, score in open_model.likeliest(logits_V[target_ids], top_k)]
