"""Claim: generator and discriminator share their embeddings, load apart in stock transformers, and tokens are drawn
from the generator's distribution by nothing but their own numbers."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForPreTraining, ElectraForPreTraining

from clozeline.encoder.families.layout import TokenIds
from clozeline.language import models
from clozeline.language.detection import GENERATOR, ReplacedTokenPair, detection_logits, draw
from clozeline.language.draws import Stream, fine_uniform, token_hashes
from clozeline.system.errors import ArtifactError
from clozeline.tasks import heads as classifier
from tests.make.models import started

ROW = [2, 10, 11, 12, 13, 14, 3]
ROWS_BL = torch.tensor([ROW])
NO_FLAGS_V = torch.zeros(64, dtype=torch.bool)


@pytest.fixture
def pair(params_of, ids) -> ReplacedTokenPair:
    return with_weights_of_its_own(models.build(params_of("electra"), "rtd", ids, seed=0))


@pytest.fixture
def saved(pair: ReplacedTokenPair, tiny_tokenizer: Path, tmp_path: Path) -> Path:
    return save(pair, tiny_tokenizer, tmp_path / "encoder")


def with_weights_of_its_own(model: ReplacedTokenPair, seed: int = 0) -> ReplacedTokenPair:
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * 0.1
    return model.eval()


def save(pair: ReplacedTokenPair, tokenizer: Path, out: Path, weights: dict[str, Tensor] | None = None) -> Path:
    out.mkdir()
    models.save(pair, tokenizer, out, weights)
    return out


def largest_difference(one: torch.nn.Module, other: torch.nn.Module) -> float:
    first, second = one.state_dict(), other.state_dict()
    assert first.keys() == second.keys()
    return max((first[name] - second[name]).abs().max().item() for name in first)


def test_a_generator_has_the_same_depth_and_a_fraction_of_the_width_and_shares_its_embeddings(params_of, ids) -> None:
    """For size base it is the generator of Clark et al. 2020, table 6. The embeddings count once."""
    unset = dict.fromkeys(("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"))
    with torch.device("meta"):
        pair = models.build(params_of("electra", size="base", generator_fraction=1 / 3, **unset), "rtd", ids, seed=0)
    narrow, wide = pair.generator.config, pair.discriminator.config
    assert (narrow.num_attention_heads, narrow.hidden_size, narrow.intermediate_size) == (4, 256, 1024)
    assert (narrow.num_hidden_layers, narrow.embedding_size) == (wide.num_hidden_layers, wide.embedding_size)
    embeddings = sum(parameter.numel() for parameter in pair.base_model.embeddings.parameters())
    apart = sum(it.numel() for part in (pair.discriminator, pair.generator) for it in part.parameters())
    assert sum(parameter.numel() for parameter in pair.parameters()) == apart - embeddings


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@torch.inference_mode()
def test_both_load_in_stock_transformers_with_the_same_logits(
    tied: bool, params_of, ids, tiny_tokenizer: Path, tmp_path: Path
) -> None:
    built = models.build(params_of("electra", tie_word_embeddings=tied), "rtd", ids, seed=0)
    pair = with_weights_of_its_own(built)
    folder = save(pair, tiny_tokenizer, tmp_path / "encoder")
    discriminator = AutoModelForPreTraining.from_pretrained(folder, local_files_only=True).eval()
    generator, report = AutoModelForMaskedLM.from_pretrained(
        folder / GENERATOR, local_files_only=True, output_loading_info=True
    )
    encoder = AutoModel.from_pretrained(folder, local_files_only=True).eval()
    assert type(discriminator) is ElectraForPreTraining
    assert not report["missing_keys"]
    score_BL = detection_logits(pair, ROWS_BL, None)
    assert (discriminator(ROWS_BL).logits - score_BL).abs().max() <= 1e-5
    padded_BL = torch.tensor([[*ROW, 0, 0], [2, 33, 40, 41, 42, 43, 44, 45, 3]])
    beside_BL = detection_logits(pair, padded_BL, (padded_BL != 0).long())
    assert (beside_BL[0, : len(ROW)] - score_BL[0]).abs().max() <= 1e-5, "padding changes nothing"
    assert (generator.eval()(ROWS_BL).logits - pair.generator(ROWS_BL).logits).abs().max() <= 1e-5
    hidden_BLH = pair.base_model(ROWS_BL).last_hidden_state
    assert (encoder(ROWS_BL).last_hidden_state - hidden_BLH).abs().max() <= 1e-5
    assert (generator.get_output_embeddings().weight is generator.get_input_embeddings().weight) == tied


def test_a_saved_pair_is_loaded_as_a_pair_and_fine_tuned_as_its_discriminator(pair, saved, tiny_tokenizer) -> None:
    """Processes that divide a model return its shared weights only once."""
    again = models.load(saved)
    assert (models.head_of(again), again.training) == ("rtd", False)
    assert largest_difference(pair, again) == 0
    assert again.generator.base_model.embeddings is again.discriminator.base_model.embeddings
    fine_tuned = classifier.build_classifier(saved, ["one"], seed=0).base_model.state_dict()
    assert all(torch.equal(fine_tuned[name], weight) for name, weight in pair.base_model.state_dict().items())
    once = {name: parameter.detach() + 1 for name, parameter in pair.named_parameters()}
    again = models.load(save(pair, tiny_tokenizer, saved.with_name("given"), once))
    assert all(torch.equal(parameter, once[name]) for name, parameter in again.named_parameters())


def test_a_pair_of_two_trainings_or_without_a_generator_is_refused(pair, saved: Path, tiny_tokenizer) -> None:
    other = save(with_weights_of_its_own(pair, seed=1), tiny_tokenizer, saved.with_name("other"))
    (saved / GENERATOR).rename(saved / "gone")
    (other / GENERATOR).rename(saved / GENERATOR)
    with pytest.raises(ArtifactError, match="generator of another discriminator"):
        models.load(saved)
    (saved / GENERATOR / "config.json").unlink()
    with pytest.raises(ArtifactError, match="without its generator"):
        models.load(saved)


def start(folder: Path, params_of, ids, **changes: object) -> torch.nn.Module:
    arguments = {"params": params_of("modernbert"), "ids": ids, "seed": 1, "max_length": 64} | changes
    return started(str(folder), head="rtd", **arguments)


@pytest.mark.parametrize("vocab_size", [64, 66])
def test_a_saved_pair_continues_training_with_both_models(pair, saved, params_of, vocab_size: int) -> None:
    """An added token has one row in the table that they share."""
    again = start(saved, params_of, TokenIds(vocab_size, pad_id=0, cls_id=2, sep_id=3))
    table = again.discriminator.get_input_embeddings().weight
    assert again.training
    assert again.config.vocab_size == again.generator.config.vocab_size == len(table) == vocab_size
    assert len(again.generator.head.output.bias) == vocab_size
    assert again.generator.head.output.weight is table
    assert vocab_size > 64 or largest_difference(pair, again) == 0


def test_a_discriminator_without_a_generator_gets_a_seeded_fresh_one_with_a_warning(
    pair: ReplacedTokenPair, tiny_tokenizer: Path, tmp_path: Path, params_of, ids, caplog
) -> None:
    folder = tmp_path / "alone"
    folder.mkdir()
    models.save_encoder(pair, tiny_tokenizer, folder)
    one, same, other = (start(folder, params_of, ids, seed=seed) for seed in (1, 1, 2))
    assert "has no generator" in caplog.text
    assert largest_difference(one.base_model, pair.base_model) == 0
    assert largest_difference(one, same) == 0
    assert largest_difference(one.generator, other.generator) > 0
    assert one.generator.config.hidden_size == 8


def uniforms(num_targets: int, epoch: int = 0) -> Tensor:
    every_T = np.arange(num_targets)
    return torch.from_numpy(fine_uniform(token_hashes(7, epoch, Stream.REPLACEMENT, every_T // 100, every_T % 100)))


def test_replacements_follow_the_probabilities_of_the_generator() -> None:
    """Chi-square at p = 0.001 over 59 tokens, on 100,000 draws; special ones are left out of the distribution."""
    torch.manual_seed(0)
    logits_V = torch.randn(64) * 2
    guess_T = draw(logits_V.expand(100_000, -1), uniforms(100_000), torch.arange(64) < 5)
    assert guess_T.min() >= 5
    expected_V = 100_000 * logits_V[5:].softmax(dim=0)
    counts_V = torch.bincount(guess_T, minlength=64)[5:]
    assert ((counts_V - expected_V) ** 2 / expected_V).sum() < 97.0


def test_a_replacement_depends_only_on_its_own_random_number_and_logits() -> None:
    torch.manual_seed(0)
    logits_TV, uniform_T = torch.randn(300, 64), uniforms(300)
    random = torch.get_rng_state()
    guess_T = draw(logits_TV, uniform_T, NO_FLAGS_V)
    assert torch.equal(draw(logits_TV[117:190], uniform_T[117:190], NO_FLAGS_V), guess_T[117:190])
    assert torch.equal(torch.get_rng_state(), random)
    assert (draw(logits_TV, uniforms(300, epoch=1), NO_FLAGS_V) != guess_T).float().mean() > 0.5
    two_TV = torch.full((2, 64), -torch.inf)
    two_TV[:, [6, 60]] = 0.0
    extremes_T = torch.tensor([0.0, 1 - 2.0**-53], dtype=torch.float64)
    assert draw(two_TV, extremes_T, NO_FLAGS_V).tolist() == [6, 60], "only possible tokens are drawn"
    assert draw(two_TV[:0], extremes_T[:0], NO_FLAGS_V).shape == (0,)
