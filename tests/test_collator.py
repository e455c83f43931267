"""Claim: rows are masked alike whoever collates them, in whatever company; other masks come with each epoch alone.

Where transformers' own collator does otherwise, a test shows it beside ours (transformers 4.57.6).
"""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from torch.utils.data import DataLoader
from transformers import (
    BertConfig,
    BertForMaskedLM,
    DataCollatorForLanguageModeling,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)

from clozeline.collator import MaskingCollator
from clozeline.errors import DataError, ParamsError
from clozeline.params import MaskingParams

NAMES = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
SPECIAL = list(NAMES.values())
WHOLE_WORDS = {"whole_word_mask": True, "mask_replace_prob": 1.0, "random_replace_prob": 0.0}
"""The only shares that theirs knows for whole words."""
Rows = list[dict[str, list[int]]]


def sentences(count: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    syllables = ["ka", "to", "mi", "re", "su", "lon", "ber", "ge", "shi", "vo", "tri", "ple"]
    words = ["".join(draw.choices(syllables, k=draw.randint(1, 4))) for _ in range(300)]
    return [" ".join(draw.choices(words, k=draw.randint(3, 30))) + "." for _ in range(count)]


def framed(tokenizer: Tokenizer, trainer: Any, **names: str) -> PreTrainedTokenizerFast:
    tokenizer.train_from_iterator(sentences(300), trainer)
    ends = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **NAMES | names)


@pytest.fixture(scope="module")
def wordpiece() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    return framed(tokenizer, trainers.WordPieceTrainer(vocab_size=110, special_tokens=SPECIAL, show_progress=False))


@pytest.fixture(scope="module")
def byte_level() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return framed(
        tokenizer,
        trainers.BpeTrainer(vocab_size=320, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False),
    )


@pytest.fixture(scope="module")
def rows(wordpiece: PreTrainedTokenizerFast) -> Rows:
    return [{"input_ids": ids} for ids in wordpiece(sentences(400, 1))["input_ids"]]


def collated(collator: Any, rows: Sequence[Any], batch_size: int = 16, **loading: Any) -> list[tuple[Any, Any]]:
    """(what is shown, labels) of each row, without padding, as a loader brings them."""
    loader: Any = DataLoader(rows, batch_size=batch_size, collate_fn=collator, **loading)
    return [
        (tuple(ids[kept].tolist()), tuple(labels[kept].tolist()))
        for batch in loader
        for ids, labels, kept in zip(batch["input_ids"], batch["labels"], batch["attention_mask"].bool(), strict=True)
    ]


def theirs(tokenizer: PreTrainedTokenizerFast, **settings: Any) -> DataCollatorForLanguageModeling:
    return DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15, **settings)


def labels_of(batch: Any) -> np.ndarray:
    labels: np.ndarray = batch["labels"].numpy()
    return labels


def test_a_batch_is_padded_and_has_labels_where_there_is_a_loss(wordpiece: PreTrainedTokenizerFast, rows: Rows) -> None:
    batch = MaskingCollator(wordpiece, mask_rate=0.3)(rows[:8])
    longest = max(len(row["input_ids"]) for row in rows[:8])
    assert {name: (values.dtype, tuple(values.shape)) for name, values in batch.items()} == dict.fromkeys(
        ["input_ids", "attention_mask", "labels"], (torch.int64, (8, longest))
    )
    for number, row in enumerate(rows[:8]):
        length = len(row["input_ids"])
        labels, shown = batch["labels"][number].tolist(), batch["input_ids"][number].tolist()
        assert batch["attention_mask"][number].tolist() == [1] * length + [0] * (longest - length)
        assert set(labels[length:]) <= {-100}
        assert set(shown[length:]) <= {wordpiece.pad_token_id}
        for given, label, seen in zip(row["input_ids"], labels, shown, strict=False):
            assert label in (-100, given)
            assert label == given or seen == given
    assert (batch["labels"] != -100).any()


def test_a_row_is_padded_to_a_multiple_and_on_the_tokenizers_side(wordpiece: PreTrainedTokenizerFast) -> None:
    row = {"input_ids": [2, 20, 21, 3]}
    assert MaskingCollator(wordpiece, pad_to_multiple_of=8)([row])["attention_mask"].tolist() == [[1] * 4 + [0] * 4]
    left = PreTrainedTokenizerFast(tokenizer_object=wordpiece.backend_tokenizer, **NAMES, padding_side="left")
    batch = MaskingCollator(left, pad_to_multiple_of=8)([row])
    assert batch["attention_mask"].tolist() == [[0] * 4 + [1] * 4]
    assert batch["input_ids"][0, [0, 4, 7]].tolist() == [0, 2, 3]


def test_rows_may_be_lists_arrays_or_tensors_padded_or_not(wordpiece: PreTrainedTokenizerFast, rows: Rows) -> None:
    collator, ids = MaskingCollator(wordpiece), rows[0]["input_ids"]
    mask = [1] * len(ids) + [0] * 3
    given: list[dict[str, Any]] = [
        {"input_ids": ids},
        {"input_ids": np.array(ids, dtype=np.int32)},
        {"input_ids": torch.tensor(ids)},
        {"input_ids": [*ids, 0, 0, 0], "attention_mask": mask},
        {"input_ids": torch.tensor([*ids, 0, 0, 0]), "attention_mask": torch.tensor(mask)},
    ]
    assert len({collated(collator, [row])[0] for row in given}) == 1


def test_types_of_tokens_are_passed_on(wordpiece: PreTrainedTokenizerFast) -> None:
    rows = [{"input_ids": [2, 20, 3, 21, 3], "token_type_ids": [0, 0, 0, 1, 1]}, {"input_ids": [2, 3]}]
    rows[1]["token_type_ids"] = [0, 0]
    batch = MaskingCollator(wordpiece)(rows)
    assert batch["token_type_ids"].tolist() == [[0, 0, 0, 1, 1], [0] * 5]


@pytest.mark.parametrize("settings", [{}, {"unit": "word"}, {"unit": "span", "mean_span_tokens": 3.8}])
def test_masks_do_not_depend_on_batch_size_order_or_workers(
    wordpiece: PreTrainedTokenizerFast, rows: Rows, settings: dict[str, Any]
) -> None:
    """P4, P6: a rank that sees every other row masks it as a single one would."""
    collator = MaskingCollator(wordpiece, seed=3, **settings)
    whole = collated(collator, rows)
    assert collated(collator, rows, batch_size=7) == whole
    assert collated(collator, rows, num_workers=2) == whole
    assert collated(collator, rows[::-1])[::-1] == whole
    assert [collated(collator, rows[rank::2], batch_size=5) for rank in (0, 1)] == [whole[0::2], whole[1::2]]


def test_theirs_masks_otherwise_with_two_workers(wordpiece: PreTrainedTokenizerFast, rows: Rows) -> None:
    """P4: transformers seeds a stream for each worker, and draws from it in the order of batches."""
    none, two = (collated(theirs(wordpiece, seed=3), rows, num_workers=workers) for workers in (0, 2))
    assert none != two
    assert collated(theirs(wordpiece, seed=3), rows, batch_size=7) != none


@pytest.mark.parametrize("loading", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}])
def test_each_epoch_has_masks_of_its_own_for_any_kind_of_worker(
    wordpiece: PreTrainedTokenizerFast, rows: Rows, loading: dict[str, Any]
) -> None:
    """P5: the epoch is in memory that workers share, those that live on and those to come."""
    collator = MaskingCollator(wordpiece, seed=3)
    loader: Any = DataLoader(rows, batch_size=16, collate_fn=collator, **loading)
    found = []
    for epoch in (0, 1, 0):
        collator.set_epoch(epoch)
        found.append([tuple(batch["labels"].flatten().tolist()) for batch in loader])
    assert found[0] == found[2]
    assert not set(found[0]) & set(found[1])
    assert found[:2] == [in_one_process(wordpiece, rows, epoch) for epoch in (0, 1)]


def in_one_process(tokenizer: PreTrainedTokenizerFast, rows: Rows, epoch: int) -> list[tuple[int, ...]]:
    collator = MaskingCollator(tokenizer, seed=3)
    collator.set_epoch(epoch)
    loader: Any = DataLoader(rows, batch_size=16, collate_fn=collator)
    return [tuple(batch["labels"].flatten().tolist()) for batch in loader]


def test_theirs_repeats_its_masks_in_each_epoch_of_new_workers(wordpiece: PreTrainedTokenizerFast, rows: Rows) -> None:
    """P5: a seeded generator that begins anew in each process of each epoch."""
    collator = theirs(wordpiece, seed=3)
    loader: Any = DataLoader(rows, batch_size=16, collate_fn=collator, num_workers=2)
    one, two = ([tuple(batch["labels"].flatten().tolist()) for batch in loader] for _ in range(2))
    assert one == two


def test_no_special_token_is_hidden_drawn_or_asked_for(wordpiece: PreTrainedTokenizerFast) -> None:
    """P2, P3: also in mid-row, also those that were added later, also what the row itself calls special."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=wordpiece.backend_tokenizer, **NAMES)
    tokenizer.add_special_tokens({"additional_special_tokens": ["[NEW]"]})
    tokenizer.add_tokens([AddedToken("[NEWER]", special=True)])
    special = [0, 1, 2, 3, 4, *tokenizer.convert_tokens_to_ids(["[NEW]", "[NEWER]"])]
    draw = np.random.default_rng(0)
    rows = [{"input_ids": draw.integers(0, len(tokenizer), 200).tolist()} for _ in range(100)]
    given = np.array([row["input_ids"] for row in rows])
    batch = MaskingCollator(tokenizer, mask_rate=0.9, mask_share=0.0, random_share=1.0, keep_share=0.0)(rows)
    is_special = np.isin(given, special)
    assert (labels_of(batch)[is_special] == -100).all()
    assert (np.isin(batch["input_ids"].numpy(), special) == is_special).all()
    told = [{**row, "special_tokens_mask": [1, 0] * 100} for row in rows]
    batch = MaskingCollator(tokenizer, mask_rate=0.9)(told)
    assert (labels_of(batch)[:, ::2] == -100).all()
    assert (batch["input_ids"].numpy()[:, ::2] == given[:, ::2]).all()
    MaskingCollator(wordpiece)  # ids of the tokenizer it shares were not touched


def test_theirs_draws_special_tokens_as_replacements(wordpiece: PreTrainedTokenizerFast, rows: Rows) -> None:
    """P3: 5 of 110 ids are special; transformers puts them into the text among the others, ours never."""
    settings = {"mask_replace_prob": 0.0, "random_replace_prob": 1.0}
    special = torch.tensor(wordpiece.all_special_ids)

    def share(batch: dict[str, torch.Tensor]) -> float:
        return float(torch.isin(batch["input_ids"][batch["labels"] != -100], special).float().mean())

    assert share(theirs(wordpiece, seed=1, **settings)(rows)) == pytest.approx(5 / 110, abs=0.02)
    assert share(MaskingCollator(wordpiece, mask_share=0.0, random_share=1.0, keep_share=0.0)(rows)) == 0


def fates(given: np.ndarray, batch: Any, mask_id: int) -> list[float]:
    """Shares of the targets that became [MASK], another token, or stayed."""
    is_target = labels_of(batch) != -100
    shown, before = batch["input_ids"].numpy()[is_target], given[is_target]
    is_mask, is_kept = shown == mask_id, shown == before
    return [float(is_mask.mean()), float((~is_mask & ~is_kept).mean()), float(is_kept.mean())]


def even_rows(
    tokenizer: PreTrainedTokenizerFast, count: int, length: int, after_a_word: str = " "
) -> list[dict[str, Any]]:
    """Rows of equal length, all that theirs can take: with offsets, and special tokens told."""
    encoded = tokenizer(
        [" ".join(sentences(8, seed)).replace(" ", after_a_word) for seed in range(count)],
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
        truncation=True,
        max_length=length,
    )
    return [{name: encoded[name][row] for name in encoded} for row in range(count)]


def test_80_10_10_holds_for_whole_words_and_not_in_theirs(wordpiece: PreTrainedTokenizerFast) -> None:
    """P8: transformers knows 100/0/0 alone, and fails where it means to say so."""
    rows = even_rows(wordpiece, 500, 64)
    given = np.array([row["input_ids"] for row in rows])
    ours = fates(given, MaskingCollator(wordpiece, unit="word")(rows), 4)
    assert ours == pytest.approx([0.8, 0.1, 0.1], abs=0.025)
    with pytest.raises(TypeError, match="category must be a Warning"):
        theirs(wordpiece, whole_word_mask=True)
    assert fates(given, theirs(wordpiece, **WHOLE_WORDS, seed=1)(rows), 4) == [1.0, 0.0, 0.0]


def test_two_ranks_share_no_stream_of_masks_as_they_do_in_theirs(wordpiece: PreTrainedTokenizerFast) -> None:
    """P6: with one seed on all ranks, transformers hides the same places of different rows on each."""
    rows = even_rows(wordpiece, 200, 64)
    ranks = rows[:100], rows[100:]
    is_target = [labels_of(theirs(wordpiece, seed=3)(part)) != -100 for part in ranks]
    assert (is_target[0] == is_target[1]).all()
    is_target = [labels_of(MaskingCollator(wordpiece, seed=3)(part)) != -100 for part in ranks]
    in_both = (is_target[0] & is_target[1]).sum() / is_target[0].sum()
    assert in_both == pytest.approx(0.15, abs=0.04)  # what chance gives


def test_words_of_byte_level_bpe_are_masked_at_the_rate_and_rows_in_theirs(byte_level: PreTrainedTokenizerFast) -> None:
    """P9: to transformers, whose words end at a gap between offsets, a row without gaps is one word."""
    rows = even_rows(byte_level, 1000, 64)

    def share_per_row(batch: Any) -> np.ndarray:
        return (labels_of(batch) != -100)[:, 1:-1].mean(axis=1)

    ours, other = (
        share_per_row(collator(rows))
        for collator in (
            MaskingCollator(byte_level, unit="word"),
            theirs(byte_level, **WHOLE_WORDS, seed=1),
        )
    )
    assert set(other) == {0.0, 1.0}
    assert other.mean() == pytest.approx(0.15, abs=0.04)
    assert ours.mean() == pytest.approx(0.15, abs=0.01)
    assert ((ours > 0) & (ours < 0.6)).mean() > 0.95


def test_punctuation_is_not_glued_to_words_as_in_theirs(wordpiece: PreTrainedTokenizerFast) -> None:
    """P9: `word.` is one word to transformers, so its full stop is always hidden with it."""
    rows = even_rows(wordpiece, 300, 64, after_a_word=". ")

    def hidden_with_the_word_before(batch: Any) -> float:
        given = np.array([row["input_ids"] for row in rows])
        is_target = labels_of(batch) != -100
        at = given[:, 1:] == stop(wordpiece)
        return float(is_target[:, 1:][at & is_target[:, :-1]].mean())

    assert hidden_with_the_word_before(theirs(wordpiece, **WHOLE_WORDS, seed=1)(rows)) == 1.0
    assert hidden_with_the_word_before(MaskingCollator(wordpiece, unit="word")(rows)) < 0.25


def stop(tokenizer: PreTrainedTokenizerFast) -> int:
    return int(tokenizer.convert_tokens_to_ids("."))


def test_whole_words_of_ragged_rows_are_masked_and_refused_by_theirs(wordpiece: PreTrainedTokenizerFast) -> None:
    """P9."""
    encoded = wordpiece(sentences(200, 2), return_offsets_mapping=True, return_special_tokens_mask=True)
    rows = [{name: encoded[name][row] for name in encoded} for row in range(200)]
    with pytest.raises(ValueError, match="tensor"):
        theirs(wordpiece, **WHOLE_WORDS)(rows)
    labels = labels_of(MaskingCollator(wordpiece, unit="word", mask_rate=0.3)(rows))
    for row, label in zip(rows, labels, strict=True):
        tokens = wordpiece.convert_ids_to_tokens(row["input_ids"])
        for place in range(1, len(tokens)):
            if tokens[place].startswith("##"):
                assert (label[place] == -100) == (label[place - 1] == -100)


def test_the_global_random_states_stay_as_they_are(wordpiece: PreTrainedTokenizerFast, rows: Rows) -> None:
    """P12."""
    states = (random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[1].tolist())
    MaskingCollator(wordpiece, word_dropout=0.1)(rows)
    assert states == (random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[1].tolist())


def test_rows_of_equal_tokens_have_equal_masks_unless_they_are_numbered(wordpiece: PreTrainedTokenizerFast) -> None:
    collator, ids = MaskingCollator(wordpiece, mask_rate=0.5), [2, *range(20, 60), 3]
    one, two = collated(collator, [{"input_ids": ids}] * 2)
    assert one == two
    one, two = collated(collator, [{"input_ids": ids, "document": number} for number in (1, 2)])
    assert one != two


def test_rows_of_the_same_tokens_in_another_order_have_masks_of_their_own(wordpiece: PreTrainedTokenizerFast) -> None:
    middle = range(20, 60)
    rows = [{"input_ids": [2, *middle[turn:], *middle[:turn], 3]} for turn in range(40)]
    labels = labels_of(MaskingCollator(wordpiece, mask_rate=0.5)(rows))
    assert len({tuple(row) for row in (labels != -100).tolist()}) == 40


def test_settings_are_those_of_params_yaml(wordpiece: PreTrainedTokenizerFast, rows: Rows) -> None:
    settings: dict[str, Any] = {"unit": "word", "mask_rate": 0.4, "protected_tokens": ("to",)}
    defaults = {"final_mask_rate": None, "mask_share": 0.8, "random_share": 0.1, "keep_share": 0.1}
    params = MaskingParams(**defaults, **settings, mean_span_tokens=None, word_dropout=0.0)
    assert collated(MaskingCollator(wordpiece, params), rows) == collated(MaskingCollator(wordpiece, **settings), rows)


def test_the_rate_goes_to_its_end_in_the_last_epoch(wordpiece: PreTrainedTokenizerFast, rows: Rows) -> None:
    collator = MaskingCollator(wordpiece, mask_rate=0.4, final_mask_rate=0.1)
    shares = []
    for epoch in range(3):
        collator.set_epoch(epoch, num_epochs=3)
        batch = collator(rows)
        ordinary = batch["attention_mask"].sum() - 2 * len(rows)
        shares.append(float((batch["labels"] != -100).sum() / ordinary))
    assert shares == pytest.approx([0.4, 0.25, 0.1], abs=0.02)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"mask_rate": 15}, "mask_rate: Input should be less than 1"),
        ({"mask_rat": 0.1}, "mask_rat: Extra inputs are not permitted"),
        ({"unit": "span"}, "set `mean_span_tokens`"),
        ({"protected_tokens": ("kato!",)}, "kato!"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(
    wordpiece: PreTrainedTokenizerFast, settings: dict[str, Any], told: str
) -> None:
    with pytest.raises(ParamsError) as caught:
        MaskingCollator(wordpiece, **settings)
    assert told in str(caught.value)


def test_a_tokenizer_without_a_mask_is_refused_with_what_to_do(wordpiece: PreTrainedTokenizerFast) -> None:
    """P10."""
    maskless = PreTrainedTokenizerFast(tokenizer_object=wordpiece.backend_tokenizer, pad_token="[PAD]")
    with pytest.raises(ParamsError) as caught:
        MaskingCollator(maskless)
    assert caught.value.given == "no mask_token"
    assert "resize_token_embeddings" in caught.value.do


@pytest.mark.parametrize(
    ("row", "given"),
    [({"ids": [2, 3]}, "keys ids"), ({"input_ids": [[2, 3]]}, "of shape (1, 2)"), ({"input_ids": [2, 999]}, "id 999")],
)
def test_rows_that_are_none_are_refused(wordpiece: PreTrainedTokenizerFast, row: dict[str, Any], given: str) -> None:
    with pytest.raises(DataError) as caught:
        MaskingCollator(wordpiece)([row])
    assert given in caught.value.given


class Recorder(BertForMaskedLM):
    """Keeps what it is given."""

    seen: list[tuple[tuple[int, ...], tuple[int, ...]]]

    def forward(self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None, **others: Any) -> Any:
        for ids, label, kept in zip(input_ids, labels, attention_mask.bool(), strict=True):
            self.seen.append((tuple(ids[kept].tolist()), tuple(label[kept].tolist())))
        return super().forward(input_ids=input_ids, attention_mask=attention_mask, labels=labels)


def test_rows_for_evaluation_have_the_same_masks_in_all_epochs(wordpiece: PreTrainedTokenizerFast, rows: Rows) -> None:
    collator = MaskingCollator(wordpiece, mask_rate=0.3, final_mask_rate=0.1)
    before = collated(collator, collator.fixed(rows))
    collator.set_epoch(1, num_epochs=2)
    assert collated(collator, collator.fixed(rows), batch_size=7, num_workers=2) == before
    assert collated(collator, rows) != before
    asked, all_tokens = (sum(len(labels) - labels.count(-100) * none for _, labels in before) for none in (1, 0))
    assert asked / (all_tokens - 2 * len(rows)) == pytest.approx(0.3, abs=0.02)


@pytest.fixture
def trained(wordpiece: PreTrainedTokenizerFast, rows: Rows, tmp_path: Path) -> Callable[..., list[Any]]:
    """What a real `Trainer` gives to its model, row by row, epochs back to back."""

    long_rows = [row for row in rows if len(row["input_ids"]) > 50][:64]

    def train(resume: str | None = None, evaluate: Any = None, **arguments: Any) -> list[Any]:
        shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 16}
        torch.manual_seed(0)
        model = Recorder(BertConfig(vocab_size=len(wordpiece), **shape))
        model.seen = []
        collator = MaskingCollator(wordpiece, seed=3)
        defaults = {"num_train_epochs": 2, "per_device_train_batch_size": 16, "save_strategy": "no", "use_cpu": True}
        settings = TrainingArguments(str(tmp_path), report_to=[], disable_tqdm=True, **defaults | arguments)
        callbacks = [collator.each_epoch()]
        sets = {"train_dataset": long_rows, "eval_dataset": evaluate}
        trainer = Trainer(model, settings, data_collator=collator, callbacks=callbacks, **sets)
        trainer.train(resume_from_checkpoint=None if resume is None else str(tmp_path / resume))
        return model.seen

    return train


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
def test_a_trainer_sees_the_same_masks_for_any_workers_and_new_ones_in_the_second_epoch(
    trained: Callable[..., list[Any]],
) -> None:
    """P4, P5."""
    alone = trained()
    assert trained(dataloader_num_workers=2) == alone
    assert trained(dataloader_num_workers=2, dataloader_persistent_workers=True) == alone
    assert len(alone) == 128
    assert not set(alone[:64]) & set(alone[64:])


@pytest.mark.slow
def test_a_trainer_evaluates_each_epoch_on_the_same_masks(
    trained: Callable[..., list[Any]], wordpiece: PreTrainedTokenizerFast, rows: Rows
) -> None:
    """P32."""
    held_out = MaskingCollator(wordpiece).fixed(rows[:16])
    seen = trained(evaluate={"one": held_out, "two": held_out}, eval_strategy="epoch", per_device_eval_batch_size=16)
    evaluated = [seen[64:80], seen[80:96], seen[160:176], seen[176:192]]
    assert len(seen) == 192
    assert evaluated == [evaluated[0]] * 4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
def test_a_trainer_that_resumes_goes_on_with_the_masks_of_its_epoch(trained: Callable[..., list[Any]]) -> None:
    """P4: killed in the second epoch, resumed from step 6 of 8."""
    whole = trained(save_strategy="steps", save_steps=6)
    assert trained(resume="checkpoint-6", save_strategy="no") == whole[6 * 16 :]
