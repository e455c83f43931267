import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel

from clozeline.errors import ArtifactError, ParamsError
from clozeline.model import language_model
from clozeline.model.families import FAMILIES, TokenIds
from clozeline.model.objectives import TargetBatch
from clozeline.params import ModelParams, read_params

PROJECT = Path(__file__).parents[2]
VOCAB_SIZE = 64
IDS = TokenIds(VOCAB_SIZE, pad_id=0, cls_id=2, sep_id=3)
ROW = [2, 10, 11, 12, 13, 14, 3]


def params(family: str) -> ModelParams:
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    project = read_params(PROJECT / "params.yaml").pretrain.model
    return project.model_copy(update={"family": family, "size": None, "max_position_embeddings": 64, **shape})


@pytest.fixture(params=sorted(FAMILIES))
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return language_model.build(params(request.param), "mlm", IDS, seed=0).eval()


def batch(*rows: list[int], pad_to: int = 0) -> TargetBatch:
    """Every content token is a target."""
    longest = max(pad_to, *(len(row) for row in rows))
    input_ids_BL = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    mask_BL = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    slots = [number * longest + place for number, row in enumerate(rows) for place in range(1, len(row) - 1)]
    return TargetBatch(
        input_ids_BL,
        None if bool(mask_BL.all()) else mask_BL,
        torch.tensor(slots),
        input_ids_BL.reshape(-1)[slots],
    )


@torch.inference_mode()
def assert_same_logits(model: PreTrainedModel, one: TargetBatch, two: TargetBatch, num_targets: int) -> None:
    first_TV = language_model.target_logits(model, one)[:num_targets]
    second_TV = language_model.target_logits(model, two)[:num_targets]
    assert (first_TV - second_TV).abs().max() <= 1e-5


def test_a_row_has_the_same_logits_alone_padded_and_beside_others(model: PreTrainedModel) -> None:
    alone = batch(ROW)
    assert_same_logits(model, alone, batch(ROW, pad_to=20), 5)
    assert_same_logits(model, alone, batch(ROW, [2, *range(20, 40), 3]), 5)
    assert_same_logits(model, alone, batch(ROW, [2, 33, 40, 41, 5, 6, 3]), 5)


@torch.inference_mode()
def test_projecting_targets_alone_gives_the_logits_of_the_stock_forward_pass(model: PreTrainedModel) -> None:
    masked = batch(ROW, [2, 33, 40, 3])
    stock_BLV = model(masked.input_ids_BL, attention_mask=masked.attention_mask_BL).logits
    expected_TV = stock_BLV.reshape(-1, VOCAB_SIZE)[masked.slot_T]
    assert (language_model.target_logits(model, masked) - expected_TV).abs().max() <= 1e-5


@torch.inference_mode()
def test_attention_looks_both_ways(model: PreTrainedModel) -> None:
    before_TV = language_model.target_logits(model, batch(ROW))
    after_TV = language_model.target_logits(model, batch([*ROW[:5], 60, 3]))
    assert (before_TV[0] - after_TV[0]).abs().max() > 1e-5


@torch.inference_mode()
def test_the_initial_loss_is_that_of_knowing_nothing(model: PreTrainedModel) -> None:
    masked = batch(*[[2, *torch.randint(5, VOCAB_SIZE, (30,)).tolist(), 3] for _ in range(20)])
    loss = functional.cross_entropy(language_model.target_logits(model, masked), masked.labels_T)
    assert loss.item() == pytest.approx(math.log(VOCAB_SIZE), abs=0.1)


def test_weights_are_a_function_of_the_seed_and_the_global_random_state_stays() -> None:
    torch.manual_seed(9)
    expected = torch.rand(1)
    torch.manual_seed(9)
    one, same, other = (language_model.build(params("modernbert"), "mlm", IDS, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(1), expected)
    weights = [next(iter(model.parameters())) for model in (one, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_a_saved_model_gives_the_same_logits_in_stock_transformers(
    model: PreTrainedModel, tiny_tokenizer: Path, tmp_path: Path
) -> None:
    out = tmp_path / "encoder"
    out.mkdir()
    language_model.save(model, tiny_tokenizer, out)
    stock = AutoModelForMaskedLM.from_pretrained(out, local_files_only=True).eval()
    input_ids_BL = torch.tensor([ROW])
    with torch.inference_mode():
        assert (stock(input_ids_BL).logits - model(input_ids_BL).logits).abs().max() <= 1e-6
    assert stock.get_input_embeddings().weight is stock.get_output_embeddings().weight
    assert AutoTokenizer.from_pretrained(out, local_files_only=True)("w10 w11").input_ids == [10, 11]
    assert_same_logits(language_model.load(out), batch(ROW), batch(ROW), 5)


def test_an_unknown_family_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ParamsError, match="bert, modernbert"):
        language_model.build(params("t5"), "mlm", IDS, seed=0)


def test_a_folder_without_a_model_is_refused_with_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="dvc repro pretrain"):
        language_model.load(tmp_path)


def test_tokens_of_another_vocabulary_are_refused_with_both_sizes(model: PreTrainedModel) -> None:
    with pytest.raises(ArtifactError, match=r"(?s)65.*64"):
        language_model.check_vocabulary(model, 65, Path("data/tokens"))


FILL_DISK = """
import resource, sys
from pathlib import Path
from transformers import BertConfig, BertForMaskedLM
from clozeline.atomic import replacing_folder
from clozeline.model import language_model
model = BertForMaskedLM(BertConfig(hidden_size=64, num_hidden_layers=1, num_attention_heads=1, intermediate_size=64))
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))  # as much as this disk will take of one file
with replacing_folder(Path(sys.argv[1])) as folder:
    language_model.save_weights(model, folder)
"""


def test_a_disk_that_is_full_while_a_model_is_saved_is_told_by_name_and_leaves_nothing_half_written(
    tmp_path: Path,
) -> None:
    out = tmp_path / "encoder"
    result = subprocess.run([sys.executable, "-c", FILL_DISK, str(out)], capture_output=True, text=True)
    assert f"StorageError: no space left while writing {out}" in result.stderr
    assert list(tmp_path.iterdir()) == []
