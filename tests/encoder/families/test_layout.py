"""Requirements for every row of the table of families."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional
from transformers import (
    AlbertConfig,
    AlbertForPreTraining,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertConfig,
    BertForPreTraining,
    DebertaV2Config,
    DebertaV2ForMaskedLM,
    PreTrainedModel,
)

from clozeline.encoder.families import FAMILIES
from clozeline.encoder.families.layout import LanguageHead, TokenIds
from clozeline.language import models
from clozeline.system.errors import ArtifactError
from tests.make.models import SHAPE as SMALL
from tests.make.models import started

ROW = [2, 10, 11, 12, 13, 14, 3]
ROWS_BL = torch.tensor([ROW])
CASES = [(family, objective) for family, row in FAMILIES.items() for objective in row.forms if objective != "rtd"]
AUTO = {"mlm": AutoModelForMaskedLM, "clm": AutoModelForCausalLM}

every_form = pytest.mark.parametrize(("family", "objective"), CASES, ids=["-".join(case) for case in CASES])


@pytest.fixture
def model(family: str, objective: LanguageHead, params_of, ids) -> PreTrainedModel:
    return models.build(params_of(family), objective, ids, seed=0).eval()


def with_other_weights(model: PreTrainedModel, size: float) -> PreTrainedModel:
    """Change every weight and bias at random, so that a weight that is left out shows."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * size
    return model.eval()


@every_form
@torch.inference_mode()
def test_the_logits_of_a_row_do_not_depend_on_padding_or_other_rows(model, batch_of) -> None:
    alone_TV = models.target_logits(model, batch_of(ROW))
    others = [batch_of(ROW, [2, *range(20, 60), 3]), batch_of(ROW, [2, 33, 40, 41, 5, 6, 3])]
    for batch in (batch_of(ROW, pad_to=20), *others):
        assert (models.target_logits(model, batch)[:5] - alone_TV).abs().max() <= 1e-5
    batch = batch_of(ROW, [2, 33, 40, 3])
    stock_BLV = model(batch.input_ids_BL, attention_mask=batch.attention_mask_BL).logits
    expected_TV = stock_BLV.reshape(-1, stock_BLV.shape[-1])[batch.slot_T]
    assert (models.target_logits(model, batch) - expected_TV).abs().max() <= 1e-5


@every_form
@torch.inference_mode()
def test_attention_is_bidirectional_in_masked_models_and_backward_only_in_causal_ones(
    model, objective, batch_of
) -> None:
    with_other_weights(model, 0.3)  # fresh weights hide the effect of the mask
    rows = (ROW, [*ROW[:5], 60, 3], [2, 60, *ROW[2:]])
    before_TV, later_TV, earlier_TV = (models.target_logits(model, batch_of(row)) for row in rows)
    assert (before_TV[4] - earlier_TV[4]).abs().max() > 1e-3
    ahead = (before_TV[:4] - later_TV[:4]).abs().amax(dim=1)
    assert (ahead > 1e-3).all() if objective == "mlm" else (ahead <= 1e-5).all()


@every_form
@torch.inference_mode()
def test_the_initial_loss_is_that_of_a_uniform_guess_and_half_the_variance_of_its_logits(
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
        optimizer.zero_grad(set_to_none=False)
    assert loss.item() < 0.05
    idle = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert all("pooler" in name or "global" in name for name in idle), idle


@every_form
@torch.inference_mode()
def test_padding_gives_no_nan_even_in_an_all_padding_row(model, batch_of) -> None:
    batch = batch_of(ROW, [2, 33, 3], [], pad_to=12)
    assert bool(models.target_logits(model, batch).isfinite().all())
    whole = model(batch.input_ids_BL, attention_mask=batch.attention_mask_BL)
    assert bool(whole.logits[:2].isfinite().all())


@every_form
@torch.inference_mode()
def test_a_saved_model_gives_the_same_logits_in_stock_transformers(
    model, objective, tiny_tokenizer: Path, tmp_path: Path
) -> None:
    models.save(with_other_weights(model, 0.05), tiny_tokenizer, tmp_path)
    stock, report = AUTO[objective].from_pretrained(tmp_path, local_files_only=True, output_loading_info=True)
    encoder = AutoModel.from_pretrained(tmp_path, local_files_only=True).eval()
    ours = models.load(tmp_path)
    expected_BLV, hidden_BLH = model(ROWS_BL).logits, model.base_model(ROWS_BL).last_hidden_state
    assert (stock.eval()(ROWS_BL).logits - expected_BLV).abs().max() <= 1e-5
    assert (encoder(ROWS_BL).last_hidden_state - hidden_BLH).abs().max() <= 1e-5
    assert torch.equal(ours(ROWS_BL).logits, expected_BLV)
    assert report["missing_keys"] in ([], set())
    assert stock.get_input_embeddings().weight is stock.get_output_embeddings().weight
    assert type(ours) is type(model)
    assert AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)("w10 w11").input_ids == [10, 11]


SHAPE = SMALL | {"vocab_size": 64, "max_position_embeddings": 66}
DEBERTA = {
    **{"type_vocab_size": 0, "relative_attention": True, "position_biased_input": False, "pos_att_type": "p2c|c2p"},
    **{"share_att_key": True, "norm_rel_ebd": "layer_norm", "position_buckets": 16},
}
# With the heads that they were published with: the next sentence's, the order of sentences'.
PUBLISHED: dict[str, Callable[[], PreTrainedModel]] = {
    "albert": lambda: AlbertForPreTraining(AlbertConfig(**SHAPE, embedding_size=16)),
    "bert": lambda: BertForPreTraining(BertConfig(**SHAPE)),
    "deberta-v3": lambda: DebertaV2ForMaskedLM(DebertaV2Config(**SHAPE, **DEBERTA)),
}


def with_weights(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    return with_other_weights(PUBLISHED[name](), 0.1)


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    """A folder with a published BERT."""
    with_weights("bert").save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def start(params_of) -> Callable[..., PreTrainedModel]:
    def start(folder: Path, **more) -> PreTrainedModel:
        ids = TokenIds(64, 0, 2, 3)
        return started(str(folder), params_of("modernbert"), "mlm", ids, seed=1, max_length=64, **more).eval()

    return start


def rewrite(folder: Path, weights: dict[str, Tensor]) -> None:
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def with_old_names(folder: Path) -> None:
    """Rename weights as in checkpoints from TensorFlow: gamma and beta."""
    weights = load_file(folder / "model.safetensors").items()
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    rewrite(folder, {re.sub(r"LayerNorm\.\w+$", lambda found: old[found[0]], name): weight for name, weight in weights})


def in_half(folder: Path) -> None:
    rewrite(folder, {name: weight.half() for name, weight in load_file(folder / "model.safetensors").items()})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"torch_dtype": "float16", "dtype": "float16"}))


def in_shards(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    places = {name: f"model-0000{number % 3 + 1}-of-00003.safetensors" for number, name in enumerate(sorted(weights))}
    for place in set(places.values()):
        part = {name: weight for name, weight in weights.items() if places[name] == place}
        save_file(part, folder / place, metadata={"format": "pt"})
    index = {"metadata": {"total_size": 0}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("layout", "name"),
    [*((with_old_names, name) for name in PUBLISHED), *((layout, "bert") for layout in (in_half, in_shards))],
)
@torch.inference_mode()
def test_every_published_layout_gives_the_outputs_of_stock_transformers(
    layout, name, start, tiny_tokenizer: Path, tmp_path: Path
) -> None:
    folder, out, published = tmp_path / "published", tmp_path / "out", with_weights(name)
    published.save_pretrained(folder)
    layout(folder)
    stock = AutoModelForMaskedLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
    ours = start(folder)
    out.mkdir()
    models.save(ours, tiny_tokenizer, out)
    again = AutoModelForMaskedLM.from_pretrained(out, local_files_only=True).eval()
    expected_BLV, hidden_BLH = stock(ROWS_BL).logits, published.base_model(ROWS_BL).last_hidden_state
    for model in (ours, again):
        assert (model(ROWS_BL).logits - expected_BLV).abs().max() <= 1e-5
    largest = 0.05 if layout is in_half else 1e-5
    assert (ours.base_model(ROWS_BL).last_hidden_state - hidden_BLH).abs().max() <= largest
    assert {parameter.dtype for parameter in ours.parameters()} == {torch.float32}
    assert again.config.dtype == torch.float32


def as_pickle(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"weights": Caller(folder / "it-ran")}, folder / "pytorch_model.bin")


def without_a_shard(folder: Path) -> None:
    in_shards(folder)
    (folder / "model-00002-of-00003.safetensors").unlink()


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (as_pickle, r"without running code.*pytorch_model\.bin.*is a program"),
        (lambda bert: (bert / "model.safetensors").rename(bert / "tf_model.h5"), r"TensorFlow.*from_tf=True"),
        (without_a_shard, r"cannot be read.*model-00002-of-00003\.safetensors"),
    ],
)
def test_weights_that_cannot_be_read_safely_are_refused_by_name(harm, told: str, start, bert: Path) -> None:
    """A pickle can call any function when it is opened: it stays unopened."""
    harm(bert)
    with pytest.raises(ArtifactError, match=f"(?s){told}"):
        start(bert)
    assert not (bert / "it-ran").exists()


class Caller:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., None], tuple[Path]]:
        return Path.touch, (self.path,)


def test_tokens_of_another_vocabulary_txt_are_refused(start, bert: Path, made_tiny_tokenizer: Path) -> None:
    numbers = json.loads((made_tiny_tokenizer / "tokenizer.json").read_text())["model"]["vocab"]
    words = sorted(numbers, key=numbers.get)
    (bert / "vocab.txt").write_text("\n".join(words) + "\n")
    start(bert, tokenizer=made_tiny_tokenizer)
    words[10], words[11] = words[11], words[10]
    (bert / "vocab.txt").write_text("\n".join(words) + "\n")
    with pytest.raises(ArtifactError, match=r"(?s)'w11' is 11, not 10"):
        start(bert, tokenizer=made_tiny_tokenizer)
