"""Claim: settings are those of params.yaml; an error names what is wrong with an unusable setting or an invalid row."""

from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from clozeline.lab.collator import MaskingCollator
from clozeline.params.pretraining import MaskingParams
from clozeline.system.errors import DataError, ParamsError
from tests.collator.rows import Rows, collated


def test_settings_have_the_names_of_params_yaml(wordpiece: PreTrainedTokenizerFast, rows: Rows) -> None:
    settings: dict[str, Any] = {"unit": "word", "mask_rate": 0.4, "protected_tokens": ("to",)}
    defaults = {"final_mask_rate": None, "mask_share": 0.8, "random_share": 0.1, "keep_share": 0.1}
    params = MaskingParams(**defaults, **settings, mean_span_tokens=None)
    assert collated(MaskingCollator(wordpiece, params), rows) == collated(MaskingCollator(wordpiece, **settings), rows)


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
    assert "without mask_token" in caught.value.problem
    assert "resize_token_embeddings" in caught.value.do


@pytest.mark.parametrize(
    ("row", "given"),
    [
        ({"ids": [2, 3]}, "keys ids"),
        ({"input_ids": [[2, 3]]}, "of shape (1, 2)"),
        ({"input_ids": [2, 999]}, "id 999"),
        ({"input_ids": [2, -100, 3]}, "id -100"),
        ({"input_ids": ["two", "three"]}, "'two'"),
        ({"input_ids": [2, 20.5, 3]}, "2.0"),
        ({"input_ids": [[2], [2, 3]]}, "`input_ids`: "),
        ({"input_ids": [2, 20, 3], "attention_mask": [1, 1]}, "`attention_mask` of length 2, `input_ids` of length 3"),
        ({"input_ids": [2, 20, 3], "special_tokens_mask": [1]}, "`special_tokens_mask` of length 1"),
        ({"input_ids": [2, 20, 3], "document": "first"}, "`document` of the rows: ['first']"),
        ({"input_ids": [2, 20, 3], "document": 2**70}, "`document` of the rows"),
    ],
)
def test_invalid_rows_are_refused(wordpiece: PreTrainedTokenizerFast, row: dict[str, Any], given: str) -> None:
    with pytest.raises(DataError) as caught:
        MaskingCollator(wordpiece)([row])
    assert given in caught.value.problem


@pytest.mark.parametrize("name", ["document", "special_tokens_mask", "token_type_ids"])
def test_a_row_without_a_column_of_the_first_row_is_refused(wordpiece: PreTrainedTokenizerFast, name: str) -> None:
    whole = {"input_ids": [2, 20, 3], "document": 1, "special_tokens_mask": [1, 0, 1], "token_type_ids": [0, 0, 0]}
    with pytest.raises(DataError, match=name):
        MaskingCollator(wordpiece)([whole, {key: value for key, value in whole.items() if key != name}])


def test_no_rows_are_refused(wordpiece: PreTrainedTokenizerFast) -> None:
    with pytest.raises(DataError, match="no row"):
        MaskingCollator(wordpiece)([])


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_an_out_of_range_seed_is_refused(wordpiece: PreTrainedTokenizerFast, seed: int) -> None:
    with pytest.raises(ParamsError, match=f"(?s)seed.*{seed}"):
        MaskingCollator(wordpiece, seed=seed)


def test_a_section_together_with_single_settings_is_refused(wordpiece: PreTrainedTokenizerFast) -> None:
    masking = MaskingParams(
        unit="token",
        mask_rate=0.15,
        final_mask_rate=None,
        mask_share=0.8,
        random_share=0.1,
        keep_share=0.1,
        mean_span_tokens=None,
        protected_tokens=(),
    )
    with pytest.raises(ParamsError, match="mask_rate"):
        MaskingCollator(wordpiece, masking, mask_rate=0.3)
