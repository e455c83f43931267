"""Claim: replaced-token detection is trained as the paper writes its loss, and as exactly as any other objective."""

import logging
import math

import pytest
import torch
from torch.nn import functional

from clozeline.language import models
from clozeline.language.detection import ReplacedTokenPair, detection_logits, draw
from clozeline.language.objectives import DetectionBatch, unigram_entropy
from clozeline.pretraining.job import Pretraining
from clozeline.pretraining.watching import plateau_warning
from clozeline.training.curves import ValidationPass
from tests.training.prepared import DETECTING, Prepare

WEIGHT = 50.0


@pytest.fixture
def prepare(prepare: Prepare) -> Prepare:
    return prepare.but(**DETECTING, steps=12, log_every_steps=3, optimizer__learning_rate=1e-3)


def pair_of(job: Pretraining) -> ReplacedTokenPair:
    assert isinstance(job.model, ReplacedTokenPair)
    return job.model


def first_batch(job: Pretraining) -> DetectionBatch:
    batch = next(job.loop.batches_from(0, 0)).inputs
    assert isinstance(batch, DetectionBatch)
    return batch


def test_the_initial_loss_equals_that_of_a_uniform_guess_and_of_the_electra_paper(prepare: Prepare) -> None:
    """P23: ln V for the generator, ln 2 for the discriminator. Clark et al. 2020, section 2, with a padded row: a mean
    over targets, and a mean over all real tokens.
    """
    job = prepare()
    model, batch = pair_of(job), first_batch(job)
    assert batch.attention_mask_BL is not None
    is_fixed_V = torch.arange(64) < 5
    with torch.no_grad():
        logits_TV = models.target_logits(model, batch)
        ids_BL = batch.text_ids_BL.clone()
        ids_BL.view(-1)[batch.slot_T] = draw(logits_TV, batch.uniform_T, is_fixed_V)
        is_real_BL = batch.text_ids_BL != 0
        logits_N = detection_logits(model, ids_BL, is_real_BL.long())[is_real_BL]
        replaced_N = (ids_BL != batch.text_ids_BL)[is_real_BL].float()
        loss = job.loop.loss_sum(batch).loss_sum.item() / len(batch.labels_T)
    of_generator = functional.cross_entropy(logits_TV, batch.labels_T).item()
    of_discriminator = functional.binary_cross_entropy_with_logits(logits_N, replaced_N).item()
    assert loss == pytest.approx(of_generator + WEIGHT * of_discriminator, rel=1e-6)
    assert loss == pytest.approx(math.log(64) + WEIGHT * math.log(2), abs=0.5)
    assert 0 < replaced_N.sum() <= len(batch.labels_T)


def test_the_generator_gets_no_gradient_from_the_discriminator(prepare: Prepare) -> None:
    """Section 2: its gradient comes only from predicting targets, except in the shared embeddings."""
    own, of_table = [], []
    for weight in (1.0, 1000.0):
        job = prepare(discriminator_weight=weight)
        model = pair_of(job)
        job.loop.loss_sum(first_batch(job)).loss_sum.backward()
        shared = {id(parameter) for parameter in model.base_model.embeddings.parameters()}
        own.append({name: p.grad for name, p in model.generator.named_parameters() if id(p) not in shared})
        of_table.append(model.base_model.embeddings.tokens.weight.grad)
    for name, gradient in own[0].items():
        assert torch.equal(gradient, own[1][name]), name
        assert gradient.abs().sum() > 0 or name.endswith("key.bias"), name
    assert not torch.equal(*of_table)


def test_the_validation_loss_is_a_mean_over_targets_for_any_batching(prepare: Prepare) -> None:
    """P33: not a mean of the batches' means, though the share of targets differs from batch to batch."""
    whole, parts = prepare(), prepare(batch_tokens=64)
    assert len(parts.judge._batches) > len(whole.judge._batches)
    parts.model.load_state_dict(whole.model.state_dict())
    assert parts.judge.measure() == pytest.approx(whole.judge.measure(), rel=1e-5)


def test_each_validation_line_names_both_losses_and_a_generator_on_the_plateau(prepare: Prepare, caplog) -> None:
    """Untrained, with equally frequent words, the generator is on the plateau: ln 64 is near ln 59."""
    job = prepare()
    entropy = unigram_entropy(job.train.shards, job.train.vocabulary)
    shown = plateau_warning(pair_of(job), job.judge, WEIGHT, entropy, first_step=2)
    job.model.eval()
    loss = job.judge.measure().loss
    job.model.train()
    with caplog.at_level(logging.INFO):
        for step in (1, 2, 3, 4):
            shown.on_validation(ValidationPass(step, loss, 0.5))
            assert ("the loss has stayed" in caplog.text) == (step == 4)
    assert job.model.training
    told = caplog.records[0].getMessage().split()
    assert float(told[1]) + WEIGHT * float(told[6]) == pytest.approx(loss, abs=0.01)
    assert float(told[6]) == pytest.approx(math.log(2), abs=0.01)
