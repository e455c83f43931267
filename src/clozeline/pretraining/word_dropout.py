"""Word dropout, an augmentation: in some texts of an epoch words are deleted, and nothing takes their place.

A deletion is a function of (seed, epoch, document, position of the word's first token), like a mask.

Shapes: B rows of a batch, N their tokens.
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from clozeline.errors import ParamsError
from clozeline.params import WordDropoutParams
from clozeline.tokens.draws import Flags, Stream, first_uniform, follows, token_hashes
from clozeline.tokens.rows import NUM_BOUNDARY_TOKENS, RowTokens
from clozeline.tokens.spelling import Spelling


@dataclass(frozen=True)
class WordDropout:
    seed: int
    params: WordDropoutParams
    spelling: Spelling

    @classmethod
    def of(cls, params: WordDropoutParams, seed: int, spelling: Spelling) -> Self | None:
        """Return None if nothing is deleted.

        Raises:
            ParamsError: the tokenizer does not mark where words begin.
        """
        if not params.text_share or not params.word_share:
            return None
        if not spelling.marks_words:
            raise ParamsError(
                "`word_dropout`: no token marks where a word begins (##, byte-level BPE, SentencePiece ▁, </w>)",
                do="set `word_dropout.text_share: 0.0`, or take another tokenizer",
            )
        return cls(seed, params, spelling)

    def shorten(self, tokens: RowTokens, epoch: int) -> RowTokens:
        """Return the rows without their deleted words; a row that would lose all words keeps them.

        The tokens that stay keep their positions in the document, which decide their masks.
        """
        is_kept_N = ~self._deleted(tokens, epoch)
        num_rows = len(tokens.length_B)
        is_kept_N |= (np.bincount(tokens.row_N[is_kept_N], minlength=num_rows) == 0)[tokens.row_N]
        row_N = tokens.row_N[is_kept_N]
        num_kept_B = np.bincount(row_N, minlength=num_rows)
        return replace(
            tokens,
            input_ids_N=tokens.input_ids_N[is_kept_N],
            document_N=tokens.document_N[is_kept_N],
            position_N=tokens.position_N[is_kept_N],
            row_N=row_N,
            place_N=np.arange(len(row_N)) - np.repeat(np.cumsum(num_kept_B) - num_kept_B, num_kept_B),
            length_B=num_kept_B + NUM_BOUNDARY_TOKENS,
        )

    def _deleted(self, tokens: RowTokens, epoch: int) -> Flags:
        document_N, position_N = tokens.document_N, tokens.position_N
        continues_N = self.spelling.continues_word(tokens.input_ids_N, follows(tokens.row_N, position_N))
        first_N = np.maximum.accumulate(np.where(continues_N, 0, np.arange(len(continues_N))))
        of_text_N = token_hashes(self.seed, epoch, Stream.TEXT_DROPOUT, document_N, np.zeros_like(position_N))
        of_word_N = token_hashes(self.seed, epoch, Stream.WORD_DROPOUT, document_N, position_N[first_N])
        loses_words_N = first_uniform(of_text_N) < self.params.text_share
        return loses_words_N & (first_uniform(of_word_N) < self.params.word_share)
