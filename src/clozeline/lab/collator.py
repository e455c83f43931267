"""Clozeline's masking for transformers' `Trainer`: pass it as `data_collator`.

    collator = MaskingCollator(tokenizer, unit="word", seed=1)
    Trainer(
        model,
        arguments,
        data_collator=collator,
        train_dataset=rows,
        eval_dataset=collator.fixed(held_out_rows),
        callbacks=[collator.each_epoch()],
    ).train()

A mask is a function of (seed, epoch, row, position), where a row is identified by its own tokens. It is the same for
any number of workers, batch size and rank, and differs between epochs. The global random state is unchanged.

Rows are as they were encoded elsewhere: of any length, with boundary tokens, perhaps padded, perhaps with extra
columns.

Shapes: B rows of a batch, L its longest row; N tokens of all rows, padding left out.
"""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from torch.utils.data import Dataset
from transformers import BatchEncoding

from clozeline.language.draws import Flags, Ids, check_seed
from clozeline.language.masking import Masker, Vocabulary
from clozeline.language.spelling import Spelling
from clozeline.params.pretraining import MaskingParams
from clozeline.records.words.numbers import mixed
from clozeline.system.errors import DataError, ParamsError

NO_LOSS = -100
"""Label that the cross-entropy of torch and transformers ignores."""
_IS_FIXED = "mask_is_fixed"
_FIXED_EPOCH = 2**32
"""Epoch that no training run reaches."""
_DEFAULTS: Mapping[str, object] = {
    "unit": "token",
    "mask_rate": 0.15,
    "final_mask_rate": None,
    "mask_share": 0.8,
    "random_share": 0.1,
    "keep_share": 0.1,
    "mean_span_tokens": None,
    "protected_tokens": (),
}
"""Settings of BERT (Devlin et al. 2018, section 3.1)."""


@dataclass(frozen=True)
class RowSlots:
    """Position of each token in a batch of equally long rows."""

    shape: tuple[int, int]
    slot_N: Ids

    def filled(self, values_N: Ids, padding: int) -> Ids:
        values_BL = np.full(self.shape, padding, dtype=np.int64)
        values_BL.reshape(-1)[self.slot_N] = values_N
        return values_BL


@dataclass(frozen=True)
class RaggedRows:
    """Concatenated rows."""

    length_B: Ids
    input_ids_N: Ids
    document_N: Ids
    """Identity of the row: the number it was given, or 64 bits of its tokens."""
    position_N: Ids
    is_maskable_N: Flags
    """False where the row's own `special_tokens_mask` is set."""
    token_type_ids_N: Ids | None

    @classmethod
    def read(cls, features: Sequence[Mapping[str, Any]]) -> Self:
        """Read `input_ids` of each row and the columns beside it.

        Raises:
            DataError: a row lacks `input_ids` or a column of the first row, or a column is not a list of as many
                integers.
        """
        kept_B = [_unpadded(feature) for feature in features]
        ids_B = [_column(feature, "input_ids")[kept] for feature, kept in zip(features, kept_B, strict=True)]
        length_B = np.array([len(ids) for ids in ids_B], dtype=np.int64)
        row_N = np.repeat(np.arange(len(length_B)), length_B)
        position_N = np.arange(len(row_N)) - (np.cumsum(length_B) - length_B)[row_N]
        input_ids_N = np.concatenate(ids_B)

        def beside(name: str) -> Ids | None:
            if name not in features[0]:
                return None
            columns = [_beside(row, name, len(kept))[kept] for row, kept in zip(features, kept_B, strict=True)]
            return np.concatenate(columns)

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

    def slots(self, pads_left: bool, multiple: int) -> RowSlots:
        longest = -(-int(self.length_B.max()) // multiple) * multiple
        row_N = np.repeat(np.arange(len(self.length_B)), self.length_B)
        first_B = longest - self.length_B if pads_left else np.zeros_like(self.length_B)
        return RowSlots((len(self.length_B), longest), row_N * longest + first_B[row_N] + self.position_N)


def _column(feature: Mapping[str, Any], name: str) -> Ids:
    if name not in feature:
        raise unreadable(f"keys {', '.join(feature)}", f"`{name}` in each row")
    try:
        values = np.asarray(feature[name])
    except ValueError as error:  # nested rows of different lengths
        raise unreadable(f"`{name}`: {error}", "one row of integers") from error
    if values.ndim != 1:
        raise unreadable(f"`{name}` of shape {values.shape}", "one row of integers")
    if values.dtype.kind not in "iub" and len(values):
        raise unreadable(f"`{name}` with the value {values[0]!r}", "integers")
    return values.astype(np.int64)


def _beside(feature: Mapping[str, Any], name: str, num_ids: int) -> Ids:
    values = _column(feature, name)
    if len(values) != num_ids:
        raise unreadable(f"`{name}` of length {len(values)}, `input_ids` of length {num_ids}", "equal lengths")
    return values


def _unpadded(feature: Mapping[str, Any]) -> Flags:
    num_ids = len(_column(feature, "input_ids"))
    if "attention_mask" not in feature:
        return np.ones(num_ids, dtype=bool)
    is_read: Flags = _beside(feature, "attention_mask", num_ids) != 0
    return is_read


def unreadable(given: str, expected: str) -> DataError:
    """Return the error for rows that a tokenizer would not produce."""
    return DataError(
        f"rows cannot be masked: expected {expected}, got {given}", do="encode the texts with this collator's tokenizer"
    )


def _digests(input_ids_N: Ids, row_N: Ids, position_N: Ids, num_rows: int) -> NDArray[np.uint64]:
    """Return 64 bits of each row: a sum over its tokens, each mixed with its position."""
    digest_B = np.zeros(num_rows, dtype=np.uint64)
    np.add.at(digest_B, row_N, mixed(mixed(position_N.astype(np.uint64)) + input_ids_N.astype(np.uint64)))
    return digest_B


def _numbers(features: Sequence[Mapping[str, Any]], digest_B: NDArray[np.uint64]) -> Ids:
    if "document" not in features[0]:
        return digest_B.view(np.int64)
    given: list[Any] = [feature.get("document") for feature in features]
    try:
        return np.array([operator.index(number) for number in given], dtype=np.int64)
    except (TypeError, OverflowError) as error:
        raise unreadable(f"`document` of the rows: {given[:4]}", "an integer below 2^63 for each row") from error


class FixedRows(Dataset[Any]):
    """Rows marked to get the same masks in every epoch; made by `MaskingCollator.fixed`.

    They are not dicts, so that `Trainer` removes no column as unused but can still ask for their length
    (`group_by_length`).
    """

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Any:
        return BatchEncoding({**self._rows[index], _IS_FIXED: True})


class MaskingCollator:
    """Pads rows and masks them.

    Args:
        tokenizer: a fast tokenizer of transformers with a mask and a padding token.
        masking: as in params.yaml; or leave it out and pass only settings that differ from BERT's, as in
            `MaskingCollator(tokenizer, unit="span", mean_span_tokens=3.8, mask_rate=0.2)`.
        seed: another seed gives other masks.
        pad_to_multiple_of: pad rows to a multiple of this number of tokens.

    `final_mask_rate` is reached in the last epoch, in equal steps from epoch to epoch.

    Raises:
        ParamsError: the tokenizer cannot mask or pad, or a setting or the seed is invalid.
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
        if masking is not None and settings:
            raise ParamsError(
                f"MaskingCollator got both `masking` and the single settings {', '.join(settings)}",
                do="change `masking` itself: `masking.model_copy(update={…})`",
            )
        check_seed(seed)
        _check_usable(tokenizer)
        self._masker = _masker(tokenizer, masking or _masking(settings), seed)
        self._pad_id = int(tokenizer.pad_token_id)
        self._pads_left = tokenizer.padding_side == "left"
        self._multiple = pad_to_multiple_of or 1
        # In shared memory, so that running and future workers see the epoch that the trainer sets.
        self._epoch = torch.zeros(2, dtype=torch.int64).share_memory_()

    @property
    def epoch(self) -> int:
        return int(self._epoch[0])

    def set_epoch(self, epoch: int, num_epochs: int | None = None) -> None:
        """Set the epoch before each pass over the data; `each_epoch()` does it for a `Trainer`.

        Args:
            epoch: counted from 0.
            num_epochs: epochs of the whole training, for the schedule of the mask rate.
        """
        self._epoch[0] = epoch
        self._epoch[1] = num_epochs or 0

    def each_epoch(self) -> Any:
        """Return a `TrainerCallback` that sets the epoch of this collator, also when training resumes."""
        from transformers import TrainerCallback

        def begin_training(_args: Any, state: Any, _control: Any, **_others: Any) -> None:
            self.set_epoch(int(state.epoch or 0) - 1)

        def begin_epoch(_args: Any, state: Any, _control: Any, **_others: Any) -> None:
            self.set_epoch(self.epoch + 1, int(state.num_train_epochs or 0))

        callback = TrainerCallback()
        callback.on_train_begin, callback.on_epoch_begin = begin_training, begin_epoch
        return callback

    def fixed(self, rows: Any) -> FixedRows:
        """Return rows with the same masks in every epoch, at `mask_rate`, so that evaluations can be compared."""
        return FixedRows(rows)

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Return `input_ids`, `attention_mask`, `labels` (-100: no loss) and, if given, `token_type_ids`: int64 [B, L].

        Args:
            features: for each row its `input_ids` (list, array or tensor), with boundary tokens and of any length.
                Optional: `attention_mask` (0: padding, which is dropped), `special_tokens_mask` (1: never masked),
                `token_type_ids`, and `document`, the row's own number, which gives rows of equal tokens different
                masks. A `Trainer` drops columns that its model does not take, such as `document` and
                `special_tokens_mask`, unless `TrainingArguments(remove_unused_columns=False)` keeps them.

        Raises:
            DataError: there are no rows, a row has no `input_ids`, or the tokenizer does not have an id.
        """
        if not features:
            raise unreadable("no row", "at least one row")
        is_fixed = _IS_FIXED in features[0]
        rows = RaggedRows.read(features)
        self._check_ids(rows.input_ids_N)
        shown_N, labels_N = self._mask(rows, (_FIXED_EPOCH, 0) if is_fixed else self._epoch.tolist())
        slot = rows.slots(self._pads_left, self._multiple)
        filled = {
            "input_ids": slot.filled(shown_N, self._pad_id),
            "attention_mask": slot.filled(np.ones_like(shown_N), 0),
            "labels": slot.filled(labels_N, NO_LOSS),
        }
        if rows.token_type_ids_N is not None:
            filled["token_type_ids"] = slot.filled(rows.token_type_ids_N, 0)
        return {name: torch.from_numpy(values_BL) for name, values_BL in filled.items()}

    def _check_ids(self, input_ids_N: Ids) -> None:
        size = len(self._masker.is_special_V)
        unknown = input_ids_N[(input_ids_N < 0) | (input_ids_N >= size)]
        if len(unknown):
            raise unreadable(f"id {unknown[0]}", f"ids from 0 to {size - 1}")

    def _mask(self, rows: RaggedRows, epochs: Sequence[int]) -> tuple[Ids, Ids]:
        """Return the masked input and its labels. `epochs`: the epoch, and the number of epochs."""
        epoch, num_epochs = epochs
        progress = min(epoch / (num_epochs - 1), 1.0) if num_epochs > 1 else 0.0
        masked = self._masker.mask(epoch, rows.input_ids_N, rows.document_N, rows.position_N, progress)
        shown_N = np.where(rows.is_maskable_N, masked.input_ids_N, rows.input_ids_N)
        is_target_N = masked.is_target_N & rows.is_maskable_N
        return shown_N, np.where(is_target_N, rows.input_ids_N, NO_LOSS)


def _masking(settings: Mapping[str, object]) -> MaskingParams:
    try:
        return MaskingParams.model_validate({**_DEFAULTS, **settings})
    except ValidationError as error:
        fault = error.errors()[0]
        expected = fault["ctx"]["error"].args[0] if fault["type"] == "value_error" else fault["msg"]
        raise ParamsError(
            f"settings of MaskingCollator cannot be used: {'.'.join(map(str, fault['loc'])) or 'settings'}: {expected}",
            given=", ".join(f"{name}={value!r}" for name, value in settings.items()),
            do=f"correct it; the settings are {', '.join(_DEFAULTS)}",
        ) from error


def _check_usable(tokenizer: Any) -> None:
    missing = [role for role in ("mask_token", "pad_token") if getattr(tokenizer, role) is None]
    if missing or not tokenizer.is_fast:
        raise ParamsError(
            "masked language modelling needs a fast tokenizer with a mask token and a padding token, not "
            + (f"one without {' and '.join(missing)}" if missing else f"{type(tokenizer).__name__}, a slow one"),
            do="`tokenizer.add_special_tokens({'mask_token': '[MASK]', 'pad_token': '[PAD]'})`, then "
            "`model.resize_token_embeddings(len(tokenizer))`"
            if missing
            else "load a tokenizer that is published with a tokenizer.json: `AutoTokenizer.from_pretrained(NAME)`",
        )


def _masker(tokenizer: Any, masking: MaskingParams, seed: int) -> Masker:
    spelling = Spelling.of(tokenizer.backend_tokenizer.to_str())
    size = max(spelling.ids.values()) + 1
    special = {id_ for id_, token in tokenizer.added_tokens_decoder.items() if token.special}
    # An id without a token occurs in no text, so it is never inserted into one.
    special |= set(tokenizer.all_special_ids) | set(range(size)).difference(spelling.ids.values())
    return Masker.create(masking, Vocabulary(size, int(tokenizer.mask_token_id), frozenset(special)), seed, spelling)
