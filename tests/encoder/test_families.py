"""Requirements for every row of the table of families."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, PreTrainedModel

from clozeline.encoder.families import FAMILIES
from clozeline.encoder.families.layout import LanguageHead
from clozeline.language import models
from clozeline.language.objectives import TargetBatch

ROW = [2, 10, 11, 12, 13, 14, 3]
CASES = [(family, objective) for family, row in FAMILIES.items() for objective in row.forms if objective != "rtd"]
AUTO = {"mlm": AutoModelForMaskedLM, "clm": AutoModelForCausalLM}

every_form = pytest.mark.parametrize(("family", "objective"), CASES, ids=["-".join(case) for case in CASES])


@pytest.fixture
def model(family: str, objective: LanguageHead, params_of, ids) -> PreTrainedModel:
    return models.build(params_of(family), objective, ids, seed=0).eval()


@torch.inference_mode()
def assert_same_logits(model: PreTrainedModel, one: TargetBatch, two: TargetBatch, num_targets: int = 5) -> None:
    first_TV = models.target_logits(model, one)[:num_targets]
    second_TV = models.target_logits(model, two)[:num_targets]
    assert (first_TV - second_TV).abs().max() <= 1e-5


@every_form
def test_the_logits_of_a_row_do_not_depend_on_padding_or_other_rows(model, batch_of) -> None:
    alone = batch_of(ROW)
    assert_same_logits(model, alone, batch_of(ROW, pad_to=20))
    assert_same_logits(model, alone, batch_of(ROW, [2, *range(20, 60), 3]))
    assert_same_logits(model, alone, batch_of(ROW, [2, 33, 40, 41, 5, 6, 3]))


@every_form
@torch.inference_mode()
def test_projecting_only_targets_gives_the_logits_of_the_stock_forward_pass(model, batch_of) -> None:
    batch = batch_of(ROW, [2, 33, 40, 3])
    stock_BLV = model(batch.input_ids_BL, attention_mask=batch.attention_mask_BL).logits
    expected_TV = stock_BLV.reshape(-1, stock_BLV.shape[-1])[batch.slot_T]
    assert (models.target_logits(model, batch) - expected_TV).abs().max() <= 1e-5


@every_form
@torch.inference_mode()
def test_attention_is_bidirectional_in_masked_models_and_backward_only_in_causal_ones(
    model, objective, batch_of
) -> None:
    torch.manual_seed(0)
    for parameter in model.parameters():
        parameter += torch.randn_like(parameter) * 0.3  # fresh weights hide the effect of the mask
    before_TV = models.target_logits(model, batch_of(ROW))
    later_TV = models.target_logits(model, batch_of([*ROW[:5], 60, 3]))
    earlier_TV = models.target_logits(model, batch_of([2, 60, *ROW[2:]]))
    assert (before_TV[4] - earlier_TV[4]).abs().max() > 1e-3
    ahead = (before_TV[:4] - later_TV[:4]).abs().amax(dim=1)
    assert (ahead > 1e-3).all() if objective == "mlm" else (ahead <= 1e-5).all()


@every_form
@torch.inference_mode()
def test_the_initial_loss_equals_that_of_a_uniform_guess(model, batch_of) -> None:
    torch.manual_seed(0)
    batch = batch_of(*[[2, *torch.randint(5, 64, (30,)).tolist(), 3] for _ in range(20)])
    loss = functional.cross_entropy(models.target_logits(model, batch), batch.labels_T)
    assert loss.item() == pytest.approx(math.log(64), abs=0.1)


@every_form
@torch.inference_mode()
def test_the_initial_loss_of_a_wide_model_is_higher_by_half_the_variance_of_its_logits(
    family, objective, params_of, ids, batch_of
) -> None:
    """768 wide, as `base` is: what a norm gives times a table drawn with sigma has logits of variance sigma^2 width,
    and the mean of exp of a normal variable is exp(variance / 2). Labels are not what the model reads."""
    shape = {"hidden_size": 768, "num_hidden_layers": 1, "num_attention_heads": 12, "intermediate_size": 768}
    size = 512
    model = models.build(params_of(family, **shape), objective, replace(ids, vocab_size=size), seed=0).eval()
    torch.manual_seed(0)
    batch = batch_of(*[[2, *torch.randint(5, size, (30,)).tolist(), 3] for _ in range(20)])
    labels_T = torch.randint(5, size, batch.labels_T.shape)
    loss = functional.cross_entropy(models.target_logits(model, batch), labels_T)
    width = model.get_input_embeddings().weight.shape[1]
    assert loss.item() == pytest.approx(math.log(size) + 0.02**2 * width / 2, abs=0.1)


@every_form
def test_a_model_can_memorize_one_batch(model, batch_of) -> None:
    shown = batch_of([2, 4, 11, 4, 13, 4, 3], [2, 20, 4, 22, 4, 24, 3])
    hidden_T = torch.tensor([10, 11, 12, 13, 14, 20, 21, 22, 23, 24])
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
    for _ in range(600):
        loss = functional.cross_entropy(models.target_logits(model, shown), hidden_T)
        if loss.item() < 0.05:
            break
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert loss.item() < 0.05


@every_form
@torch.inference_mode()
def test_padding_gives_no_nan_even_in_an_all_padding_row(model, batch_of) -> None:
    batch = batch_of(ROW, [2, 33, 3], [], pad_to=12)
    assert bool(models.target_logits(model, batch).isfinite().all())
    whole = model(batch.input_ids_BL, attention_mask=batch.attention_mask_BL)
    assert bool(whole.logits[:2].isfinite().all())


@pytest.mark.parametrize("family", ["modernbert", "longformer", "big_bird"])
@torch.inference_mode()
def test_the_logits_of_a_long_row_do_not_depend_on_an_earlier_short_row(family, params_of, ids, batch_of) -> None:
    """transformers' block-sparse BigBird changes its attention for good when it meets a short row."""
    model = models.build(params_of(family, max_position_embeddings=800), "mlm", ids, seed=0).eval()
    torch.manual_seed(0)
    long = batch_of([2, *torch.randint(5, 64, (798,)).tolist(), 3])
    before_TV = models.target_logits(model, long)
    models.target_logits(model, batch_of(ROW))
    assert torch.equal(models.target_logits(model, long), before_TV)


def trained_a_little(model: PreTrainedModel, seed: int) -> None:
    """Change every weight and bias at random, so that a weight that is left out shows."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * 0.05


@every_form
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_a_saved_model_gives_the_same_logits_in_stock_transformers(
    family, objective, params_of, ids, tied, tiny_tokenizer: Path, tmp_path: Path
) -> None:
    model = models.build(params_of(family, tie_word_embeddings=tied), objective, ids, seed=0).eval()
    trained_a_little(model, seed=0)
    out = tmp_path / "encoder"
    out.mkdir()
    models.save(model, tiny_tokenizer, out)
    stock, report = AUTO[objective].from_pretrained(out, local_files_only=True, output_loading_info=True)
    encoder = AutoModel.from_pretrained(out, local_files_only=True).eval()
    ours = models.load(out)
    rows_BL = torch.tensor([ROW])
    with torch.inference_mode():
        expected_BLV = model(rows_BL).logits
        assert (stock.eval()(rows_BL).logits - expected_BLV).abs().max() <= 1e-5
        hidden_BLH = model.base_model(rows_BL).last_hidden_state
        assert (encoder(rows_BL).last_hidden_state - hidden_BLH).abs().max() <= 1e-5
        assert torch.equal(ours(rows_BL).logits, expected_BLV)
    assert report["missing_keys"] in ([], set())
    assert (stock.get_input_embeddings().weight is stock.get_output_embeddings().weight) == tied
    assert type(ours) is type(model)


@every_form
def test_every_parameter_exists_once_and_is_trainable(model, batch_of) -> None:
    batch = batch_of(ROW, [2, 33, 40, 41, 42, 3])
    functional.cross_entropy(models.target_logits(model, batch), batch.labels_T).backward()
    parameters = list(model.parameters())
    assert len({id(parameter) for parameter in parameters}) == len(parameters)
    idle = {name for name, parameter in model.named_parameters() if parameter.grad is None}
    assert all("pooler" in name or "global" in name for name in idle), idle
