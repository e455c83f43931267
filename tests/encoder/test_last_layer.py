"""Claim: the last layer at some positions gives the numbers that the whole layer has there, and leaves no trace."""

from pathlib import Path
from typing import Any

import pytest
import torch
from clozeline.encoder.last_layer import ChosenPositions, FirstPosition, can_choose, last_layer_at, reads_first_position
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification

from clozeline.encoder.families import FAMILIES, TokenIds
from clozeline.params import read_params

PROJECT = Path(__file__).parents[2]
IDS = TokenIds(vocab_size=90, pad_id=0, cls_id=2, sep_id=3)
SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
CHOSEN = ["bert", "distilbert", "electra", "modernbert", "roberta", "xlm-roberta"]


def small(family: str, **changes: object) -> Any:
    """A configuration whose last layer, where the family has such ones, attends to a window."""
    params = read_params(PROJECT / "params.yaml").pretrain.model
    shape = {"family": family, "size": None, "max_position_embeddings": 40, **SHAPE}
    config = FAMILIES[family].forms["mlm"].configure(params.model_copy(update=shape), IDS)
    config.update({"modernbert": {"local_attention": 16, "global_attn_every_n_layers": 2}}.get(family, {}) | changes)
    return config


def build(family: str, auto_class: Any = AutoModelForMaskedLM, **changes: object) -> Any:
    """Weights as after training: attention that is nearly a mean would hide a wrong position."""
    torch.manual_seed(0)
    model = auto_class.from_config(small(family, **changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * 0.2
    return model


def texts(length: int = 30) -> dict[str, torch.Tensor]:
    """All but the first are padded."""
    draw = torch.Generator().manual_seed(length)
    lengths_B = torch.tensor([length, length - 1, length // 2, 2])
    attention_mask_BL = (torch.arange(length) < lengths_B[:, None]).long()
    input_ids_BL = torch.randint(5, 90, attention_mask_BL.shape, generator=draw) * attention_mask_BL
    return {"input_ids": input_ids_BL, "attention_mask": attention_mask_BL}


@torch.inference_mode()
def hidden(model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    hidden_BXH: torch.Tensor = model.base_model(**inputs).last_hidden_state
    return hidden_BXH


@pytest.mark.parametrize("family", CHOSEN)
def test_the_first_position_is_that_of_the_whole_layer(family: str) -> None:
    model, inputs = build(family), texts()
    whole_BLH = hidden(model, inputs)
    with last_layer_at(model, FirstPosition()):
        first_B1H = hidden(model, inputs)
    assert first_B1H.shape == (4, 1, 32)
    assert (first_B1H - whole_BLH[:, :1]).abs().max() < 1e-5
    assert (whole_BLH[:, 1] - whole_BLH[:, 0]).abs().amax(dim=1).min() > 0.01  # another one would be seen


@pytest.mark.parametrize("family", CHOSEN)
def test_chosen_positions_are_those_of_the_whole_layer(family: str) -> None:
    """Of one text none is asked for, of another most; each text's first is among them all the same."""
    model, inputs = build(family), texts()
    is_asked_BL = torch.zeros_like(inputs["input_ids"], dtype=torch.bool)
    is_asked_BL[0, [3, 9, 29]] = True
    is_asked_BL[2, 1:8] = True
    asked = ChosenPositions.where(is_asked_BL)
    whole_BLH = hidden(model, inputs)
    with last_layer_at(model, asked):
        chosen_BQH = hidden(model, inputs)
    assert chosen_BQH.shape == (4, 8, 32)
    assert (chosen_BQH - asked.of(whole_BLH)).abs().max() < 1e-5
    assert asked.position_BQ[0, :4].tolist() == [0, 3, 9, 29]
    assert asked.position_BQ[2].tolist() == list(range(8))
    assert asked.position_BQ[:, 0].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("family", CHOSEN)
def test_where_every_position_is_asked_for_it_is_the_whole_layer(family: str) -> None:
    model, inputs = build(family), texts()
    with last_layer_at(model, ChosenPositions.where(torch.ones_like(inputs["input_ids"], dtype=torch.bool))):
        chosen_BQH = hidden(model, inputs)
    assert (chosen_BQH - hidden(model, inputs)).abs().max() < 1e-5


@pytest.mark.parametrize("family", CHOSEN)
def test_the_layer_is_its_own_again_afterwards(family: str) -> None:
    model, inputs = build(family), texts()
    before = hidden(model, inputs)
    with pytest.raises(ZeroDivisionError), last_layer_at(model, FirstPosition()):
        raise ZeroDivisionError
    assert torch.equal(hidden(model, inputs), before)
    assert all("forward" not in vars(module) for module in model.modules())


def test_only_layers_that_are_written_out_can_be_chosen_from() -> None:
    fit = {family for family, row in FAMILIES.items() if "mlm" in row.forms and can_choose(build(family))}
    assert fit == set(CHOSEN)
    assert not can_choose(build("bert", position_embedding_type="relative_key"))
    assert not can_choose(build("bert", is_decoder=True))


@pytest.mark.parametrize(
    ("family", "changes", "is_read"),
    [
        ("bert", {}, True),
        ("roberta", {}, True),
        ("xlm-roberta", {}, True),
        ("electra", {}, True),
        ("distilbert", {}, True),
        ("modernbert", {"classifier_pooling": "cls"}, True),
        ("modernbert", {"classifier_pooling": "mean"}, False),
    ],
)
def test_a_head_that_reads_the_first_position_says_the_same_without_the_others(
    family: str, changes: dict[str, object], is_read: bool
) -> None:
    model, inputs = build(family, AutoModelForSequenceClassification, **changes), texts()
    assert reads_first_position(model) is is_read
    with torch.inference_mode():
        whole = model(**inputs).logits
        with last_layer_at(model, FirstPosition()):
            first = model(**inputs).logits
    assert bool((first - whole).abs().max() < 1e-5) is is_read


def test_a_head_on_words_reads_more_than_the_first_position() -> None:
    assert not reads_first_position(build("bert"))
