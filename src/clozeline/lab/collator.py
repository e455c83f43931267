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
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from transformers import BatchEncoding

from clozeline.language.draws import Ids, check_seed
from clozeline.language.masking import Masker, Vocabulary
from clozeline.language.spelling import Spelling
from clozeline.params.pretraining import MaskingParams
from clozeline.records.words.numbers import mixed
from clozeline.system.errors import DataError, ParamsError

# Label that the cross-entropy of torch and transformers ignores.
NO_LOSS = -100
_IS_FIXED = "mask_is_fixed"
# Epoch that no training run reaches.
_FIXED_EPOCH = 2**32
# Settings of BERT (Devlin et al. 2018, section 3.1).
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


def _unpadded(feature: Mapping[str, Any], names: Sequence[str]) -> dict[str, Ids]:
    """Return columns of a row without its padding.

    Raises:
        DataError: the row lacks a column, or a column is not a list of as many integers as `input_ids`.
    """
    read = [*names, "attention_mask"] if "attention_mask" in feature else names
    columns = {name: _column(feature, name) for name in read}
    num_ids = len(columns["input_ids"])
    for name, values in columns.items():
        if len(values) != num_ids:
            raise unreadable(f"`{name}` of length {len(values)}, `input_ids` of length {num_ids}", "equal lengths")
    is_read = columns.pop("attention_mask", np.ones(num_ids, dtype=np.int64)) != 0
    return {name: values[is_read] for name, values in columns.items()}


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


def unreadable(given: str, expected: str) -> DataError:
    """Return the error for rows that a tokenizer would not produce."""
    return DataError(f"rows cannot be masked: expected {expected}, got {given}", do="use this collator's tokenizer")


def _identities(features: Sequence[Mapping[str, Any]], ids_N: Ids, position_N: Ids, row_N: Ids) -> Ids:
    """Return the number that each row was given, or 64 bits of its tokens: a sum of each, mixed with its position."""
    if "document" not in features[0]:
        digest_B = np.zeros(len(features), dtype=np.uint64)
        np.add.at(digest_B, row_N, mixed(mixed(position_N.astype(np.uint64)) + ids_N.astype(np.uint64)))
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
        self._side: str = tokenizer.padding_side
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
        names = ["input_ids", *(name for name in ("special_tokens_mask", "token_type_ids") if name in features[0])]
        rows = [_unpadded(feature, names) for feature in features]
        length_B = np.array([len(row["input_ids"]) for row in rows], dtype=np.int64)
        column_N = {name: np.concatenate([row[name] for row in rows]) for name in names}
        special_N = column_N.pop("special_tokens_mask", np.zeros(length_B.sum(), dtype=np.int64))
        ids_N = column_N["input_ids"]
        self._check_ids(ids_N)
        row_N = np.repeat(np.arange(len(rows)), length_B)
        position_N = np.arange(len(row_N)) - (np.cumsum(length_B) - length_B)[row_N]
        document_N = _identities(features, ids_N, position_N, row_N)[row_N]
        epoch, num_epochs = (_FIXED_EPOCH, 0) if _IS_FIXED in features[0] else self._epoch.tolist()
        progress = min(epoch / (num_epochs - 1), 1.0) if num_epochs > 1 else 0.0
        masked = self._masker.mask(epoch, ids_N, document_N, position_N, progress)
        column_N["input_ids"] = np.where(special_N == 0, masked.input_ids_N, ids_N)
        column_N["attention_mask"] = np.ones_like(ids_N)
        column_N["labels"] = np.where(masked.is_target_N & (special_N == 0), ids_N, NO_LOSS)
        padding = {"input_ids": self._pad_id, "labels": NO_LOSS}
        return {name: self._padded(value_N, length_B, padding.get(name, 0)) for name, value_N in column_N.items()}

    def _padded(self, value_N: Ids, length_B: Ids, padding: int) -> torch.Tensor:
        rows = torch.split(torch.from_numpy(value_N), length_B.tolist())
        value_BL = pad_sequence(list(rows), batch_first=True, padding_value=padding, padding_side=self._side)
        missing = -value_BL.shape[1] % self._multiple
        return functional.pad(value_BL, (missing, 0) if self._side == "left" else (0, missing), value=padding)

    def _check_ids(self, input_ids_N: Ids) -> None:
        size = len(self._masker.is_special_V)
        unknown = input_ids_N[(input_ids_N < 0) | (input_ids_N >= size)]
        if len(unknown):
            raise unreadable(f"id {unknown[0]}", f"ids from 0 to {size - 1}")


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
