"""Claim: adapters change nothing at the start, are all that is trained besides the head, and merge without a trace."""

import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from clozeline.language import models
from clozeline.params.tasks import LoraParams
from clozeline.tasks import adapters, heads
from clozeline.tasks import heads as classifier

LABELS = ("x", "y")
LORA = LoraParams(rank=2, alpha=4, dropout=0.0)
INPUT_IDS_BL = torch.tensor([[2, 10, 11, 3]])


def logits(model) -> torch.Tensor:
    with torch.inference_mode():
        return model.eval()(INPUT_IDS_BL).logits


def step(model) -> None:
    optimizer = torch.optim.SGD([parameter for parameter in model.parameters() if parameter.requires_grad], lr=1.0)
    for _ in range(3):  # the second factor starts at zero, so the first one gets no gradient in the first step
        model(INPUT_IDS_BL).logits[:, 0].sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_new_adapters_change_no_answer_and_depend_on_the_seed(small_encoder: Path) -> None:
    before = torch.get_rng_state()
    plain, one, same, other = (classifier.build_classifier(small_encoder, LABELS, 1) for _ in range(4))
    for model, seed in ((one, 1), (same, 1), (other, 2)):
        adapters.add(model, LORA, seed)
    torch.testing.assert_close(logits(one), logits(plain), rtol=0, atol=0)
    drawn = [dict(model.named_parameters()) for model in (one, same, other)]
    name = next(name for name in drawn[0] if "lora_A" in name)
    assert torch.equal(drawn[0][name], drawn[1][name])
    assert not torch.equal(drawn[0][name], drawn[2][name])
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("family", ["modernbert", "bert", "distilbert", "deberta-v2", "albert"])
def test_a_merged_model_has_no_adapters_and_gives_the_same_answers(
    family, params_of, ids, tiny_tokenizer, tmp_path: Path
) -> None:
    (tmp_path / "encoder").mkdir()
    encoder = models.build(params_of(family), "mlm", ids, seed=0)
    models.save(encoder, tiny_tokenizer, tmp_path / "encoder")
    model, plain = (classifier.build_classifier(tmp_path / "encoder", LABELS, 1) for _ in range(2))
    adapters.add(model, LORA, 1)
    step(model)
    adapted = logits(model)
    assert not torch.allclose(adapted, logits(plain), atol=1e-4)
    adapters.merge(model)
    assert list(model.state_dict()) == list(plain.state_dict())
    torch.testing.assert_close(logits(model), adapted, rtol=1e-5, atol=1e-5)
    heads.save(model, tmp_path / "encoder", 16, tmp_path / "out")
    stock = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    torch.testing.assert_close(logits(stock), adapted, rtol=1e-5, atol=1e-5)


def test_only_adapters_and_head_are_trained(small_encoder: Path) -> None:
    model = classifier.build_classifier(small_encoder, LABELS, 1)
    adapters.add(model, LORA, 1)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert {name for name in trained if "lora_" not in name} == {
        name for name, _ in model.named_parameters() if not name.startswith("encoder.")
    }
    assert sum("lora_A" in name for name in trained) == 2 * 4, "four matrices in each of two layers"


def test_a_model_without_adapters_stays_unchanged_and_needs_no_peft(
    small_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    monkeypatch.setitem(sys.modules, "peft.tuners.tuners_utils", None)
    model = classifier.build_classifier(small_encoder, LABELS, 1)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    adapters.merge(model)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
