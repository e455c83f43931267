"""Claim: the last layer at some positions gives the numbers that the whole layer has there, forward and backward."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from clozeline.encoder.architecture import SIZES, ChosenPositions, FirstPosition, Positions, Shape, Slots, shape_of
from clozeline.encoder.layers import Attention
from clozeline.language import models
from clozeline.params.model import SIZE_NAMES
from tests.encoder.test_model import PUBLISHED, both, largest

NO_NUMBERS = dict.fromkeys(("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"))


def test_sizes_have_names_and_explicit_numbers_replace_them(params_of) -> None:
    assert list(SIZE_NAMES) == list(SIZES)
    mini = params_of("modernbert", size="mini", **NO_NUMBERS)
    assert (shape_of(mini, gated=True), shape_of(mini, gated=False)) == (Shape(2, 96, 2, 192), Shape(2, 96, 2, 384))
    assert shape_of(params_of("bert"), gated=False) == shape_of(params_of("bert"), gated=True) == Shape(2, 32, 2, 48)


@pytest.mark.parametrize(
    ("family", "size", "millions"),
    [
        ("bert", "base", 85.7),
        ("modernbert", "base", 110.3),
        ("modernbert", "large", 343.0),
        ("distilbert", "base", 42.9),
        ("electra", "small", 9.6),
    ],
)
def test_the_named_sizes_are_as_large_as_the_published_models(family, size, millions, params_of, ids) -> None:
    with torch.device("meta"):
        params = params_of(family, size=size, max_position_embeddings=512, **NO_NUMBERS)
        model = models.build(params, "mlm", ids, seed=0)
    layers = [p.numel() for name, p in model.base_model.named_parameters() if "embeddings.tokens" not in name]
    assert sum(layers) / 1e6 == pytest.approx(millions, rel=0.01)


LENGTH = 100


def texts() -> tuple[Tensor, Tensor]:
    """Return ids and mask of four texts; all but the first are padded."""
    draw = torch.Generator().manual_seed(0)
    mask_BL = (torch.arange(LENGTH) < torch.tensor([[LENGTH], [LENGTH - 1], [LENGTH // 2], [2]])).long()
    return torch.randint(5, 64, mask_BL.shape, generator=draw) * mask_BL, mask_BL


def some(mask_BL: Tensor) -> Tensor:
    """Return the requested positions: none of two texts, three of the first, most of the third."""
    is_asked_BL = torch.zeros_like(mask_BL, dtype=torch.bool)
    is_asked_BL[0, [3, 9, 99]] = True
    is_asked_BL[2, 1:20] = True
    return is_asked_BL


def slots(mask_BL: Tensor) -> Slots:
    return Slots(some(mask_BL).flatten().nonzero()[:, 0], *mask_BL.shape, most_in_row=25)


ASKED: dict[str, Callable[[Tensor], Positions]] = {
    "first": lambda mask_BL: FirstPosition(),
    "chosen": lambda mask_BL: ChosenPositions.where(some(mask_BL)),
    "slots": slots,
}


@pytest.mark.parametrize("is_padded", [False, True])
@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("name", PUBLISHED)
def test_hidden_states_and_gradients_at_positions_equal_those_of_the_whole_layer(name, asked, is_padded) -> None:
    _, model = both(name, "feature-extraction")
    input_ids_BL, mask_BL = texts()
    mask = mask_BL if is_padded else None
    positions = ASKED[asked](mask_BL)
    gradients = []
    for there in (model.encoder(input_ids_BL, mask).last_hidden_state, None):
        hidden_PH = model.encoder(input_ids_BL, mask, positions=positions).last_hidden_state
        expected_PH = hidden_PH if there is None else positions.of(there)
        assert hidden_PH.shape == expected_PH.shape
        assert largest(hidden_PH - expected_PH) <= 1e-5
        model.zero_grad()
        expected_PH.square().sum().backward()
        gradients.append({name: it.grad.clone() for name, it in model.encoder.named_parameters()})
    whole, at_positions = gradients
    scale = max(map(largest, whole.values()))
    assert all(largest(at_positions[name] - whole[name]) <= 1e-5 * scale for name in whole)


@pytest.fixture
def computed(monkeypatch) -> list[int]:
    """Return a list that gets the number of positions that each layer computes."""
    seen: list[int] = []
    attended = Attention._attended
    monkeypatch.setattr(
        Attention, "_attended", lambda self, query, *rest: seen.append(query.shape[2]) or attended(self, query, *rest)
    )
    return seen


def test_the_last_layer_computes_only_the_requested_positions(computed) -> None:
    """Chosen ones include the first of each row, and are padded with others."""
    _, model = both("modernbert", "feature-extraction")
    input_ids_BL, mask_BL = texts()
    chosen = ChosenPositions.where(some(mask_BL))
    for positions in (FirstPosition(), slots(mask_BL), chosen):
        model.encoder(input_ids_BL, mask_BL, positions=positions)
    assert computed == [LENGTH, LENGTH, 1, LENGTH, LENGTH, 25, LENGTH, LENGTH, 20]
    assert chosen.position_BQ[0, :4].tolist() == [0, 3, 9, 99]
    assert chosen.position_BQ[2].tolist() == list(range(20))
    computed.clear()
    both("bert", "text-classification")[1](*texts())
    assert computed == [LENGTH, LENGTH, 1], "only what the head of a classifier reads"
