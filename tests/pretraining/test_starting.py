"""Continuing from a checkpoint takes its weights and its tokens, or is refused with a clear error."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import nn

from clozeline.encoder.checkpoints import StockModel
from clozeline.encoder.families import FAMILIES
from clozeline.encoder.families.layout import TokenIds
from clozeline.language import models
from clozeline.pretraining.card import stated_facts
from clozeline.system.errors import ArtifactError, ParamsError
from tests.make.models import started

ROW = [2, 10, 11, 12, 13, 14, 3]
ROWS_BL = torch.tensor([ROW])


@pytest.fixture
def save(params_of, ids, tiny_tokenizer: Path, tmp_path: Path) -> Callable[..., tuple[nn.Module, Path]]:
    """`save(family, objective="mlm", with_head=True)`: a model with weights of its own throughout, and its folder."""

    def save(family: str, objective: str = "mlm", with_head: bool = True) -> tuple[nn.Module, Path]:
        model = models.build(params_of(family), objective, ids, seed=3).eval()
        torch.manual_seed(3)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += torch.randn_like(parameter) * 0.1
        out = tmp_path / f"{family}-{objective}-{with_head}"
        out.mkdir()
        (models.save if with_head else models.save_encoder)(model, tiny_tokenizer, out)
        return model, out

    return save


@pytest.fixture
def start(params_of, ids) -> Callable[..., nn.Module]:
    def start(folder: Path | str, objective: str = "mlm", max_length: int = 64, **more) -> nn.Module:
        arguments = {"params": params_of("modernbert"), "ids": ids, "seed": 1} | more
        return started(str(folder), head=objective, max_length=max_length, **arguments)

    return start


CASES = [(family, objective) for family, row in FAMILIES.items() for objective in row.forms if objective != "rtd"]


@pytest.mark.parametrize(("family", "objective"), CASES, ids=["-".join(case) for case in CASES])
def test_every_family_starts_from_its_checkpoint_whatever_shape_params_have(family, objective, save, start) -> None:
    model, folder = save(family, objective)
    again = start(folder, objective)
    assert again.training
    assert type(again) is type(model)
    with torch.inference_mode():
        assert (again.eval()(ROWS_BL).logits - model(ROWS_BL).logits).abs().max() <= 1e-6


@pytest.mark.parametrize("family", FAMILIES)
def test_an_encoder_without_a_head_gets_a_fresh_one_by_seed_with_a_warning(family, save, start, caplog) -> None:
    model, folder = save(family, with_head=False)
    random = torch.get_rng_state()
    one, same, other = (start(folder, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), random)
    assert "has no trained head of this kind" in caplog.text
    with torch.inference_mode():
        hidden = [m.eval().base_model(ROWS_BL).last_hidden_state for m in (model, one, same, other)]
        logits = [m(ROWS_BL).logits for m in (one, same, other)]
    assert all((h - hidden[0]).abs().max() <= 1e-6 for h in hidden)
    assert torch.equal(logits[0], logits[1])
    assert not torch.equal(logits[0], logits[2])
    assert logits[0].std() < 2, "a fresh head knows nothing"


def test_dropout_rates_of_a_started_model_come_from_params(save, start, params_of) -> None:
    _, folder = save("bert")
    model = start(folder, params=params_of("modernbert", dropout=0.3, attention_dropout=0.2, head_dropout=0.1))
    assert {module.p for module in model.modules() if isinstance(module, nn.Dropout)} == {0.0, 0.2, 0.3}
    assert model.config.hidden_dropout_prob == 0.3
    assert model.head_dropout == 0.1
    assert models.head_of(start(folder, "clm")) == "clm", "a masked model can start a causal one of its class"


def ids_of(vocab_size: int, pad_id: int = 0) -> TokenIds:
    return TokenIds(vocab_size, pad_id, cls_id=2, sep_id=3)


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_an_added_token_gets_a_seeded_row_near_the_mean(family, save, start) -> None:
    model, folder = save(family)
    one, same, other = (start(folder, ids=ids_of(66), seed=seed).eval() for seed in (1, 1, 2))
    table_VH, trained_VH = (it.get_input_embeddings().weight for it in (one, model))
    assert one.config.vocab_size == len(table_VH) == 66
    assert torch.equal(table_VH[:64], trained_VH)
    assert (table_VH[64:] - trained_VH.mean(dim=0)).norm(dim=1).max() < 2 * trained_VH.norm(dim=1).max()
    assert (one.stock.get_output_embeddings() if isinstance(one, StockModel) else one.head.output).weight is table_VH
    logits = [it(ROWS_BL).logits for it in (one, same, other)]
    assert (logits[0][..., :64] - model(ROWS_BL).logits).abs().max() <= 1e-5
    assert logits[0].shape[-1] == 66
    smaller = start(folder, ids=ids_of(50)).eval()
    assert (smaller(ROWS_BL).logits - model(ROWS_BL).logits[..., :50]).abs().max() <= 1e-5
    assert torch.equal(logits[0], logits[1])
    assert not torch.equal(logits[0], logits[2])


def test_a_tokenizer_with_an_added_token_fits_and_another_order_is_refused(
    save, start, tiny_tokenizer: Path, tmp_path: Path
) -> None:
    _, folder = save("bert")
    start(folder, tokenizer=tiny_tokenizer)
    tokenizer = Tokenizer.from_file(str(tiny_tokenizer / "tokenizer.json"))
    tokenizer.add_special_tokens(["[NEW]"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert start(folder, tokenizer=tmp_path, ids=ids_of(65)).config.vocab_size == 65
    facts = json.loads((tiny_tokenizer / "tokenizer.json").read_text())
    facts["model"]["vocab"] |= {"w10": 11, "w11": 10}
    (tmp_path / "tokenizer.json").write_text(json.dumps(facts))
    with pytest.raises(ArtifactError, match=r"'w10' is 11, not 10"):
        start(folder, tokenizer=tmp_path)


LOST = "bert.encoder.layer.1.attention.self.query.weight"


def lose_a_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights[LOST]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def become_t5(folder: Path) -> None:
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"bert"', '"t5"'))


UNHARMED: Callable[[Path], object] = lambda folder: None  # noqa: E731


@pytest.mark.parametrize(
    ("harm", "given", "told"),
    [
        (UNHARMED, {"ids": ids_of(64 + 17)}, "tokenizer of .*`existing: "),
        (UNHARMED, {"ids": ids_of(64, pad_id=1)}, "tokenizer of .*`existing: "),
        (become_t5, {}, r"\(t5\), only from .*bert.*modernbert"),
        (lose_a_weight, {}, LOST),
        (lambda folder: os.truncate(folder / "model.safetensors", 100), {}, "the weights of {folder} cannot be read"),
        (lambda folder: (folder / "config.json").unlink(), {}, "holds no model"),
    ],
)
def test_a_checkpoint_that_does_not_fit_or_is_damaged_is_refused(harm, given, told: str, save, start) -> None:
    _, folder = save("bert")
    harm(folder)
    with pytest.raises(ArtifactError, match=f"(?s){told.format(folder=folder)}"):
        start(folder, **given)


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_longer_than_the_checkpoint_reads_are_refused(family, save, start) -> None:
    with pytest.raises(ParamsError, match=r"`max_length: 65`.* 64 positions"):
        start(save(family)[1], max_length=65)


def test_another_objective_or_an_unknown_name_is_refused(save, start, offline_hub) -> None:
    with pytest.raises(ArtifactError, match=r"\(modernbert\), only from .*bert.*modernbert-decoder"):
        start(save("modernbert")[1], "clm")
    with pytest.raises(ArtifactError, match="hf download nobody/no-such-model --local-dir FOLDER"):
        start("nobody/no-such-model")


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        (b"no front matter", {}),
        (b"---\nlicense: [\n---\n# broken", {}),
        (b"\0\xef\xbf\xbe", {}),
        (b"\xef\xbb\xbf---\r\nlicense: mit\r\n---\r\n# title\r\n", {"license": "mit"}),  # as Windows writes it
    ],
)
def test_a_card_states_its_facts_and_an_unreadable_one_none(content: bytes, facts: dict[str, str], tmp_path) -> None:
    (tmp_path / "README.md").write_bytes(content)
    assert stated_facts(tmp_path / "README.md") == facts
