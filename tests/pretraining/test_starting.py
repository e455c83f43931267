"""Continuing from a checkpoint takes its weights and its tokens, or is refused with a clear error."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from torch import nn

from clozeline.encoder.checkpoints import StockModel
from clozeline.encoder.families import FAMILIES
from clozeline.encoder.families.layout import TokenIds
from clozeline.language import models
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
def test_every_family_starts_from_its_checkpoint_and_ignores_the_shape_in_params(
    family, objective, save, start
) -> None:
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


def test_a_masked_checkpoint_can_start_a_causal_model_of_the_same_class(save, start) -> None:
    _, folder = save("bert")
    causal = start(folder, "clm").eval()
    with torch.inference_mode():
        before_BLV = causal(ROWS_BL).logits
        after_BLV = causal(torch.tensor([[*ROW[:5], 60, 3]])).logits
    assert models.head_of(causal) == "clm"
    assert (before_BLV[:, :5] - after_BLV[:, :5]).abs().max() <= 1e-5


def test_dropout_rates_of_a_started_model_come_from_params(save, start, params_of) -> None:
    _, folder = save("bert")
    model = start(folder, params=params_of("modernbert", dropout=0.3, attention_dropout=0.2, head_dropout=0.1))
    assert {module.p for module in model.modules() if isinstance(module, nn.Dropout)} == {0.0, 0.2, 0.3}
    assert model.config.hidden_dropout_prob == 0.3
    assert model.head_dropout == 0.1


def ids_of(vocab_size: int, pad_id: int = 0) -> TokenIds:
    return TokenIds(vocab_size, pad_id, cls_id=2, sep_id=3)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_added_token_gets_a_seeded_row_near_the_mean(family, save, start) -> None:
    model, folder = save(family)
    one, same, other = (start(folder, ids=ids_of(66), seed=seed) for seed in (1, 1, 2))
    table_VH = one.get_input_embeddings().weight
    trained_VH = model.get_input_embeddings().weight
    assert one.config.vocab_size == len(table_VH) == 66
    assert torch.equal(table_VH[:64], trained_VH)
    assert (table_VH[64:] - trained_VH.mean(dim=0)).norm(dim=1).max() < 2 * trained_VH.norm(dim=1).max()
    assert (one.stock.get_output_embeddings() if isinstance(one, StockModel) else one.head.output).weight is table_VH
    with torch.inference_mode():
        logits = [m.eval()(ROWS_BL).logits for m in (one, same, other)]
        assert (logits[0][..., :64] - model(ROWS_BL).logits).abs().max() <= 1e-5
    assert logits[0].shape[-1] == 66
    assert torch.equal(logits[0], logits[1])
    assert not torch.equal(logits[0], logits[2])


def test_an_added_token_is_kept_after_saving(save, start, tiny_tokenizer, tmp_path: Path) -> None:
    _, folder = save("bert")
    model = start(folder, ids=ids_of(65)).eval()
    out = tmp_path / "again"
    out.mkdir()
    models.save(model, tiny_tokenizer, out)
    with torch.inference_mode():
        assert torch.equal(models.load(out)(ROWS_BL).logits, model(ROWS_BL).logits)


def test_embedding_rows_without_a_token_are_dropped(save, start) -> None:
    model, folder = save("bert")
    smaller = start(folder, ids=ids_of(50)).eval()
    with torch.inference_mode():
        assert (smaller(ROWS_BL).logits - model(ROWS_BL).logits[..., :50]).abs().max() <= 1e-5


def test_a_new_padding_token_is_named_in_the_configuration(save, start) -> None:
    _, folder = save("bert")
    assert start(folder, ids=ids_of(65, pad_id=64)).config.pad_token_id == 64


@pytest.mark.parametrize("other", [ids_of(64 + 17), ids_of(300), ids_of(64, pad_id=1)])
def test_tokens_of_another_vocabulary_are_refused_with_what_to_set(other, save, start) -> None:
    _, folder = save("bert")
    with pytest.raises(ArtifactError, match=r"(?s)tokenizer of .*`existing: "):
        start(folder, ids=other)


def test_a_vocabulary_of_equal_size_in_another_order_is_refused(save, start, tiny_tokenizer: Path, tmp_path) -> None:
    _, folder = save("bert")
    start(folder, tokenizer=tiny_tokenizer)
    other = tmp_path / "other"
    other.mkdir()
    facts = json.loads((tiny_tokenizer / "tokenizer.json").read_text())
    words = facts["model"]["vocab"]
    words["w10"], words["w11"] = words["w11"], words["w10"]
    (other / "tokenizer.json").write_text(json.dumps(facts))
    with pytest.raises(ArtifactError, match=r"'w10' is 11, not 10"):
        start(folder, tokenizer=other)


def test_a_tokenizer_with_an_added_token_still_fits_its_checkpoint(save, start, tiny_tokenizer, tmp_path) -> None:
    _, folder = save("bert")
    tokenizer = Tokenizer.from_file(str(tiny_tokenizer / "tokenizer.json"))
    tokenizer.add_special_tokens(["[NEW]"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert start(folder, tokenizer=tmp_path, ids=ids_of(65)).config.vocab_size == 65


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_longer_than_the_checkpoint_reads_are_refused(family, save, start) -> None:
    _, folder = save(family)
    with pytest.raises(ParamsError, match=r"`max_length: 65`.* 64 positions"):
        start(folder, max_length=65)


def test_a_name_that_cannot_be_downloaded_is_refused_with_the_command(start, offline_hub) -> None:
    with pytest.raises(ArtifactError, match="hf download nobody/no-such-model --local-dir FOLDER"):
        start("nobody/no-such-model")


def test_a_folder_without_a_model_is_refused(start, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="holds no model"):
        start(tmp_path)


def test_a_checkpoint_of_another_kind_is_refused_with_the_known_kinds(save, start) -> None:
    _, folder = save("modernbert")
    with pytest.raises(ArtifactError, match=r"\(modernbert\), only from .*bert.*modernbert-decoder"):
        start(folder, "clm")
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"modernbert"', '"t5"'))
    with pytest.raises(ArtifactError, match=r"\(t5\), only from"):
        start(folder)


def test_a_checkpoint_that_lacks_a_weight_of_its_encoder_is_refused(save, start) -> None:
    from safetensors.torch import load_file, save_file

    _, folder = save("bert")
    weights = load_file(folder / "model.safetensors")
    lost = "bert.encoder.layer.1.attention.self.query.weight"
    del weights[lost]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ArtifactError, match=lost):
        start(folder)


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(path.read_bytes()[:100]), lambda path: path.unlink()])
def test_damaged_or_missing_weights_are_reported_by_name(damage, save, start) -> None:
    _, folder = save("bert")
    damage(folder / "model.safetensors")
    with pytest.raises(ArtifactError, match=f"the weights of {folder} cannot be read"):
        start(folder)
