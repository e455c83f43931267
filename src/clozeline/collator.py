"""Our masks for people who train with transformers' `Trainer`: give it as `data_collator`.

    collator = MaskingCollator(tokenizer, unit="word", seed=1)
    Trainer(model, args, train_dataset=rows, data_collator=collator, callbacks=[collator.each_epoch()]).train()

A mask is a function of (seed, epoch, row, position), where a row is known by its own tokens: the same for any number
of workers, batch size and rank, other ones in each epoch, and the global random state stays as it is.

Shapes: B rows of a batch, L its longest row; N tokens of all rows, padding left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError

from clozeline.errors import DataError, ParamsError
from clozeline.params import MaskingParams
from clozeline.tokens.identity import Flags, Ids, mix
from clozeline.tokens.masking import Masker, Vocabulary
from clozeline.tokens.spelling import Spelling

NO_LOSS = -100
"""The label that cross-entropy of torch and of transformers leaves out."""
_DEFAULTS: Mapping[str, object] = {
    "unit": "token",
    "mask_rate": 0.15,
    "final_mask_rate": None,
    "mask_share": 0.8,
    "random_share": 0.1,
    "keep_share": 0.1,
    "mean_span_tokens": None,
    "word_dropout": 0.0,
    "protected_tokens": (),
}
"""Those of BERT (Devlin et al. 2018, section 3.1)."""


class MaskingCollator:
    """Pads rows and masks them.

    Args:
        tokenizer: a fast tokenizer of transformers with a mask and a padding token.
        masking: as in params.yaml; or leave it out and name only what differs from BERT's, as in
            `MaskingCollator(tokenizer, unit="span", mean_span_tokens=3.8, mask_rate=0.2)`.
        seed: another seed, other masks.
        pad_to_multiple_of: pad rows to a multiple of so many tokens.

    `final_mask_rate` is reached in the last epoch, in equal steps from epoch to epoch.

    Evaluate with a collator of its own, one that is told of no epoch: its masks stay the same.

    Raises:
        ParamsError: the tokenizer cannot mask or pad, or a setting cannot be used.
    """

    def __init__(
        self,
        tokenizer: Any,
        masking: MaskingParams | None = None,
        *,
        seed: int = 0,
        pad_to_multiple_of: int | None = None,
        **settings: object,
    ) -> None:
        assert masking is None or not settings, "give `masking` or single settings, not both"
        _check_usable(tokenizer)
        self._masker = _masker(tokenizer, masking or _masking(settings), seed)
        self._pad_id = int(tokenizer.pad_token_id)
        self._pads_left = tokenizer.padding_side == "left"
        self._multiple = pad_to_multiple_of or 1
        # In shared memory: workers that live on, and workers to come, see the epoch that the trainer sets.
        self._epoch = torch.zeros(2, dtype=torch.int64).share_memory_()

    @property
    def epoch(self) -> int:
        return int(self._epoch[0])

    def set_epoch(self, epoch: int, num_epochs: int | None = None) -> None:
        """Before each pass over the data; `each_epoch()` does it for a `Trainer`.

        Args:
            epoch: counted from 0.
            num_epochs: of the whole training, for the schedule of the rate.
        """
        self._epoch[0] = epoch
        self._epoch[1] = num_epochs or 0

    def each_epoch(self) -> Any:
        """A `TrainerCallback` that tells this collator of each epoch, also of one that is resumed."""
        from transformers import TrainerCallback

        def begin_training(_args: Any, state: Any, _control: Any, **_others: Any) -> None:
            self.set_epoch(int(state.epoch or 0) - 1)

        def begin_epoch(_args: Any, state: Any, _control: Any, **_others: Any) -> None:
            self.set_epoch(self.epoch + 1, int(state.num_train_epochs or 0))

        callback = TrainerCallback()
        callback.on_train_begin, callback.on_epoch_begin = begin_training, begin_epoch
        return callback

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """`input_ids`, `attention_mask` and `labels` (-100 where no loss), int64 [B, L], and `token_type_ids` if given.

        Args:
            features: of each row its `input_ids` (list, array or tensor), framed and of any length; if given, its
                `attention_mask` (0: padding, left out), `special_tokens_mask` (1: never masked), `token_type_ids`,
                and `document`, a number that is the row's own where rows of equal tokens shall differ in their masks.

        Raises:
            DataError: a row has no `input_ids`, or an id that the tokenizer does not have.
        """
        rows = _Rows.read(features)
        if rows.input_ids_N.size and int(rows.input_ids_N.max()) >= len(self._masker.is_special_V):
            raise _unreadable(f"id {int(rows.input_ids_N.max())}", f"ids below {len(self._masker.is_special_V)}")
        shown_N, labels_N = self._mask(rows)
        slot = rows.slots(self._pads_left, self._multiple)
        filled = {
            "input_ids": slot.filled(shown_N, self._pad_id),
            "attention_mask": slot.filled(np.ones_like(shown_N), 0),
            "labels": slot.filled(labels_N, NO_LOSS),
        }
        if rows.token_type_ids_N is not None:
            filled["token_type_ids"] = slot.filled(rows.token_type_ids_N, 0)
        return {name: torch.from_numpy(values_BL) for name, values_BL in filled.items()}

    def _mask(self, rows: "_Rows") -> tuple[Ids, Ids]:
        """What the model sees, and its labels."""
        epoch, num_epochs = self._epoch.tolist()
        progress = min(epoch / (num_epochs - 1), 1.0) if num_epochs > 1 else 0.0
        masked = self._masker.mask(epoch, rows.input_ids_N, rows.document_N, rows.position_N, progress)
        shown_N = np.where(rows.is_maskable_N, masked.input_ids_N, rows.input_ids_N)
        is_target_N = masked.is_target_N & rows.is_maskable_N
        return shown_N, np.where(is_target_N, rows.input_ids_N, NO_LOSS)


@dataclass(frozen=True)
class _Slots:
    """Where each token stands in a batch of equally long rows."""

    shape: tuple[int, int]
    slot_N: Ids

    def filled(self, values_N: Ids, padding: int) -> Ids:
        values_BL = np.full(self.shape, padding, dtype=np.int64)
        values_BL.reshape(-1)[self.slot_N] = values_N
        return values_BL


@dataclass(frozen=True)
class _Rows:
    """Rows back to back."""

    length_B: Ids
    input_ids_N: Ids
    document_N: Ids
    position_N: Ids
    is_maskable_N: Flags
    token_type_ids_N: Ids | None

    @classmethod
    def read(cls, features: Sequence[Mapping[str, Any]]) -> Self:
        kept_B = [_unpadded(feature) for feature in features]
        ids_B = [_column(feature, "input_ids")[kept] for feature, kept in zip(features, kept_B, strict=True)]
        length_B = np.array([len(ids) for ids in ids_B], dtype=np.int64)
        row_N = np.repeat(np.arange(len(length_B)), length_B)
        position_N = np.arange(len(row_N)) - (np.cumsum(length_B) - length_B)[row_N]
        input_ids_N = np.concatenate(ids_B)

        def beside(name: str) -> Ids | None:
            if name not in features[0]:
                return None
            return np.concatenate([_column(row, name)[kept] for row, kept in zip(features, kept_B, strict=True)])

        special_N = beside("special_tokens_mask")
        document_B = _numbers(features, _digests(input_ids_N, row_N, position_N, len(length_B)))
        return cls(
            length_B=length_B,
            input_ids_N=input_ids_N,
            document_N=document_B[row_N],
            position_N=position_N,
            is_maskable_N=np.ones(len(row_N), dtype=bool) if special_N is None else special_N == 0,
            token_type_ids_N=beside("token_type_ids"),
        )

    def slots(self, pads_left: bool, multiple: int) -> _Slots:
        longest = -(-int(self.length_B.max()) // multiple) * multiple
        row_N = np.repeat(np.arange(len(self.length_B)), self.length_B)
        first_B = longest - self.length_B if pads_left else np.zeros_like(self.length_B)
        return _Slots((len(self.length_B), longest), row_N * longest + first_B[row_N] + self.position_N)


def _column(feature: Mapping[str, Any], name: str) -> Ids:
    if name not in feature:
        raise _unreadable(f"keys {', '.join(feature)}", f"`{name}` in each row")
    values = np.asarray(feature[name], dtype=np.int64)
    if values.ndim != 1:
        raise _unreadable(f"`{name}` of shape {values.shape}", "one row of ids")
    return values


def _unpadded(feature: Mapping[str, Any]) -> Flags:
    ids = _column(feature, "input_ids")
    if "attention_mask" not in feature:
        return np.ones(len(ids), dtype=bool)
    is_read: Flags = _column(feature, "attention_mask") != 0
    return is_read


def _unreadable(given: str, expected: str) -> DataError:
    return DataError(
        "rows cannot be masked", given=given, expected=expected, do="encode the texts with this collator's tokenizer"
    )


def _digests(input_ids_N: Ids, row_N: Ids, position_N: Ids, num_rows: int) -> NDArray[np.uint64]:
    """64 bits of each row: a sum over its tokens, each mixed with its place."""
    digest_B = np.zeros(num_rows, dtype=np.uint64)
    np.add.at(digest_B, row_N, mix(mix(position_N.astype(np.uint64)) + input_ids_N.astype(np.uint64)))
    return digest_B


def _numbers(features: Sequence[Mapping[str, Any]], digest_B: NDArray[np.uint64]) -> Ids:
    if "document" in features[0]:
        return np.array([int(feature["document"]) for feature in features], dtype=np.int64)
    return digest_B.view(np.int64)


def _masking(settings: Mapping[str, object]) -> MaskingParams:
    try:
        return MaskingParams.model_validate({**_DEFAULTS, **settings})
    except ValidationError as error:
        fault = error.errors()[0]
        expected = fault["ctx"]["error"].args[0] if fault["type"] == "value_error" else fault["msg"]
        raise ParamsError(
            "these settings of MaskingCollator cannot be used",
            given=", ".join(f"{name}={value!r}" for name, value in settings.items()),
            expected=f"{'.'.join(map(str, fault['loc'])) or 'settings'}: {expected}",
            do=f"correct it; there are {', '.join(_DEFAULTS)}",
        ) from error


def _check_usable(tokenizer: Any) -> None:
    missing = [role for role in ("mask_token", "pad_token") if getattr(tokenizer, role) is None]
    if missing or not tokenizer.is_fast:
        raise ParamsError(
            "this tokenizer cannot be used for masked language modelling",
            given=f"no {' and no '.join(missing)}" if missing else f"{type(tokenizer).__name__}, a slow tokenizer",
            expected="a fast tokenizer with a mask token and a padding token",
            do="`tokenizer.add_special_tokens({'mask_token': '[MASK]', 'pad_token': '[PAD]'})`, then "
            "`model.resize_token_embeddings(len(tokenizer))`"
            if missing
            else "load it with `AutoTokenizer.from_pretrained(…, use_fast=True)`",
        )


def _masker(tokenizer: Any, masking: MaskingParams, seed: int) -> Masker:
    spelling = Spelling.of(tokenizer.backend_tokenizer.to_str())
    size = max(spelling.ids.values()) + 1
    special = {id_ for id_, token in tokenizer.added_tokens_decoder.items() if token.special}
    # An id without a token is nothing that a text can hold, so nothing to put into one.
    special |= set(tokenizer.all_special_ids) | set(range(size)).difference(spelling.ids.values())
    return Masker.create(masking, Vocabulary(size, int(tokenizer.mask_token_id), frozenset(special)), seed, spelling)
