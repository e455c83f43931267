"""Encoders for one field of text, made by the stages: published, adapted, trained from nothing, static."""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from time import process_time
from typing import Any

import torch
from transformers import AutoModel, AutoTokenizer

from clozeline.params.pretraining import laid_over
from clozeline.stages import pretrain
from comparison import biomedical, ours
from comparison.finetuning import params_of, run_stage
from comparison.sentences import weights
from comparison.texts import Corpus

_LOG = logging.getLogger(__name__)
MAX_LENGTH = 128
_TOKENS_OF_A_PAIR = 150
"""Mean length of a first sentence and of the rest of a paragraph, cut at `MAX_LENGTH`."""
_DETOUR = 0.3
"""Share of the budget in which a causal detour predicts the next token."""
_VOCAB_SIZE = 8192
_PUBLISHED = {
    "max_length": MAX_LENGTH,
    "batch_tokens": 1024,
    "masking": {"mask_rate": 0.15, "final_mask_rate": None},
    "model": {"dropout": 0.1, "attention_dropout": 0.1},
    "optimizer": {"learning_rate": 1.0e-4},
    "schedule": {"decay": "linear", "warmup_fraction": 0.1, "final_fraction": 0.0},
    "steps": None,
}
"""Continued training of a published encoder: masks and dropout rates as it was published."""
_OWN = {"max_length": MAX_LENGTH, "model": {"size": "mini"}, "steps": None}
"""Our default recipe, with rows as long as those of the published encoder."""


@dataclass(frozen=True)
class Budget:
    """What every recipe is given."""

    tokens: int
    """Tokens to train on."""
    seed: int
    num_threads: int
    pairs: Path
    """Folder with the parts of the pairs: those of `train` are trained on."""
    folder: Path
    """Folder for the encoders and what leads to them."""


@dataclass(frozen=True)
class Made:
    """An encoder, and what it cost."""

    folder: Path
    cpu_seconds: float
    is_own: bool = False
    """Whether it was trained from nothing, by our default recipe: it needs higher rates than a published one."""
    frozen_layers: int | None = None


def published(_: Budget) -> Made:
    return Made(weights(), 0.0)


def masked(budget: Budget) -> Made:
    """Masked training from the published weights."""
    return _adapted(budget, "masked", {"mlm": 1.0}, with_replay=False)


@cache
def masked_replay(budget: Budget) -> Made:
    """The same with general text among that of the field."""
    return _adapted(budget, "masked_replay", {"mlm": 1.0}, with_replay=True)


def detour(budget: Budget) -> Made:
    """First causal, then masked training: a causal step has every token as a target, a masked one 15 % of them."""
    return _adapted(budget, "detour", {"clm": _DETOUR, "mlm": 1 - _DETOUR}, with_replay=True)


def averaged(budget: Budget) -> Made:
    """Mean of the weights before and after masked training (Wortsman et al. 2022)."""
    trained = masked_replay(budget)
    mean, after = (AutoModel.from_pretrained(folder) for folder in (weights(), trained.folder))
    with torch.no_grad():
        for one, other in zip(mean.encoder.parameters(), after.encoder.parameters(), strict=True):
            one.lerp_(other, 0.5)
        for one, other in zip(mean.embeddings.parameters(), after.embeddings.parameters(), strict=True):
            one.lerp_(other, 0.5)
    return _saved(mean, budget.folder / "averaged", trained.cpu_seconds)


def pairs(budget: Budget) -> Made:
    """Contrastive training as the published encoder had: first sentence and rest of the paragraphs of the field."""
    return _on_pairs(budget, "pairs", published(budget))


def masked_pairs(budget: Budget) -> Made:
    """Masked training, then pairs, for half of the budget each."""
    return _on_pairs(budget, "masked_pairs", _adapted(budget, "masked_half", {"mlm": 0.5}, with_replay=True), share=0.5)


def own(budget: Budget, *, times: float = 1.0) -> Made:
    """An encoder and a vocabulary from nothing, then pairs, for half of `times` the budget each."""
    corpus = biomedical.corpus({"vocab_size": _VOCAB_SIZE}, with_replay=False)
    section = {**_OWN, "tokens": round(budget.tokens * times * 0.5)}
    made = replace(_pretrained(budget, budget.folder / f"own_{times:g}", corpus, section), is_own=True)
    return _on_pairs(budget, f"own_{times:g}_pairs", made, share=times * 0.5)


def static(budget: Budget) -> Made:
    """A vector for each token, whatever is beside it: the embeddings of the published encoder without its layers.

    One layer remains, which adds nothing, because no encoder has none; it is never trained.
    """
    model = AutoModel.from_pretrained(weights(), num_hidden_layers=1)
    layer = model.encoder.layer[0]
    with torch.no_grad():
        for table in (model.embeddings.position_embeddings, model.embeddings.token_type_embeddings):
            table.weight.zero_()
        for part in (layer.attention.output, layer.output):
            for weight in (part.dense.weight, part.dense.bias, part.LayerNorm.bias):
                weight.zero_()
            part.LayerNorm.weight.fill_(1.0)
    return replace(_saved(model, budget.folder / "static", 0.0), frozen_layers=1)


RECIPES: Mapping[str, Callable[[Budget], Made]] = {
    "published": published,
    "masked": masked,
    "masked_replay": masked_replay,
    "detour": detour,
    "averaged": averaged,
    "pairs": pairs,
    "masked_pairs": masked_pairs,
    "own": own,
    "own_20": partial(own, times=20.0),
    "static": static,
}
ADAPTED = ("masked", "masked_replay", "detour", "averaged", "pairs", "masked_pairs")
"""Recipes that continue from the published encoder."""


def _adapted(budget: Budget, name: str, shares: Mapping[str, float], *, with_replay: bool) -> Made:
    """Train on from the published encoder, with one objective after the other."""
    corpus = biomedical.corpus({"algorithm": "existing", "existing": str(weights())}, with_replay=with_replay)
    made = published(budget)
    for objective, share in shares.items():
        start = {"start": str(made.folder), "objective": objective}
        section = {**_PUBLISHED, **start, "tokens": round(budget.tokens * share)}
        then = _pretrained(budget, budget.folder / name / objective, corpus, section)
        made = replace(then, cpu_seconds=made.cpu_seconds + then.cpu_seconds)
    return made


def _pretrained(budget: Budget, out: Path, corpus: Corpus, section: Mapping[str, Any]) -> Made:
    started = process_time()
    pretrain.run(
        ours.params_of({**section, "num_threads": budget.num_threads}),
        seed=budget.seed,
        tokens=corpus.tokens,
        tokenizer=corpus.tokenizer,
        out=out / "encoder",
        metrics=out / "metrics.json",
        curve=out / "training.csv",
        looks=out / "validation.csv",
        timing=out / "timing.csv",
        work=out / "work",
    )
    figures = json.loads((out / "metrics.json").read_text(encoding="utf-8"))
    _LOG.info("%s tokens, last loss %.3f", f"{figures['tokens']:,}", figures["last_training_loss_nats_per_token"])
    return Made(out / "encoder", process_time() - started)


def _on_pairs(budget: Budget, name: str, start: Made, share: float = 1.0) -> Made:
    """Train further on pairs of `train`; those of `validation` are only measured."""
    available = len((budget.pairs / "train.jsonl").read_text(encoding="utf-8").splitlines())
    wanted = max(round(budget.tokens * share / _TOKENS_OF_A_PAIR), 1)
    recipe = {
        "epochs": max(round(wanted / available), 1),
        "max_train": min(wanted, available),
        "batch_size": 64,
        "micro_batch_tokens": 16 * MAX_LENGTH,
        "optimizer": {"learning_rate": 2.0e-3 if start.is_own else 5.0e-5},
        "splits": {"train": "train.jsonl", "validation": None, "test": "validation.jsonl"},
    }
    params = params_of(laid_over(search_task(budget.num_threads), recipe))
    started = process_time()
    run_stage("pairs", params, budget.seed, start.folder, budget.pairs, budget.folder / name)
    spent = start.cpu_seconds + process_time() - started
    return replace(start, folder=budget.folder / name / "model", cpu_seconds=spent)


def search_task(num_threads: int) -> dict[str, Any]:
    """Return the task of finding the rest of a paragraph by its first sentence, written as in params.yaml."""
    return {
        "kind": "similarity",
        "data": "parts",
        "splits": {part: f"{part}.jsonl" for part in ("train", "validation", "test")},
        "docstring_field": "text",
        "max_length": MAX_LENGTH,
        "num_threads": num_threads,
    }


def _saved(model: Any, folder: Path, cpu_seconds: float) -> Made:
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(weights()).save_pretrained(folder)
    return Made(folder, cpu_seconds)
