"""Which encoder for which need: a row each, with the lines of params.yaml that make it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class Choice:
    """What to choose for one need, and why."""

    family: str
    size: str
    recipe: str
    tokenizer: str
    why: str
    params: Mapping[str, Any]
    """Key of params.yaml, dotted → value."""


@dataclass(frozen=True)
class Combined:
    """The choices for several needs laid over each other: the need that is named first wins."""

    params: Mapping[str, Any]
    conflicts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Need → keys that it would have set otherwise."""


_TOKENIZER = {f"tokenize.{key}" for key in ("algorithm", "existing", "vocab_size", "lowercase")} | {
    "pretrain.start",
    "pretrain.recipe",
}
"""A tokenizer, and the trained model that it is of, are from one need or not at all."""


def combine(needs: Sequence[str]) -> Combined:
    """`needs`: keys of CHOICES."""
    params: dict[str, Any] = {}
    conflicts = {}
    for need in dict.fromkeys(needs):
        wanted = CHOICES[need].params
        lost = {key for key, value in wanted.items() if params.get(key, value) != value}
        if lost & _TOKENIZER:
            lost |= wanted.keys() & _TOKENIZER
        if lost:
            conflicts[need] = tuple(key for key in wanted if key in lost)
        params |= {key: value for key, value in wanted.items() if key not in lost}
    return Combined(dict(sorted(params.items())), conflicts)


def as_tree(params: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys as nested ones."""
    tree: dict[str, Any] = {}
    for key, value in params.items():
        *sections, name = key.split(".")
        inner = tree
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[name] = value
    return tree


CHOICES: Mapping[str, Choice] = MappingProxyType(
    {
        "multilingual": Choice(
            family="modernbert",
            size="small",
            recipe="standard",
            tokenizer="unigram, 64,000 pieces, case kept",
            why="The text and the vocabulary make a model multilingual, not the family (xlm-roberta is RoBERTa's layers"
            " over 250,000 pieces). Balance the languages of your text. With less than some 100 MB a language, go on"
            " from a trained one instead: `start: FacebookAI/xlm-roberta-base`, and `tokenize.existing` the same.",
            params={
                "tokenize.algorithm": "unigram",
                "tokenize.vocab_size": 64_000,
                "tokenize.lowercase": False,
                "pretrain.model.family": "modernbert",
                "pretrain.model.size": "small",
            },
        ),
        "long": Choice(
            family="modernbert",
            size="small",
            recipe="standard",
            tokenizer="as it is",
            why="Rotary positions, local attention in two layers of three, 8,192 tokens as published (Warner et al."
            " 2024), and it exports to ONNX; longformer does not. A large vocabulary shortens rows too.",
            params={
                "pretrain.model.family": "modernbert",
                "pretrain.model.size": "small",
                "pretrain.model.max_position_embeddings": 8192,
                "pretrain.max_length": 1024,
                "pretrain.batch_tokens": 8192,
                "evaluate.max_length": 1024,
            },
        ),
        "fastest": Choice(
            family="modernbert",
            size="mini",
            recipe="standard",
            tokenizer="wordpiece, 8,192 pieces",
            why="Two layers of 96, the default: they fit the cache of one core. A vocabulary of 8,192 keeps the head"
            " cheap, in training and when it fills masks.",
            params={
                "tokenize.algorithm": "wordpiece",
                "tokenize.vocab_size": 8192,
                "pretrain.model.family": "modernbert",
                "pretrain.model.size": "mini",
                "pretrain.max_length": 64,
            },
        ),
        "accurate": Choice(
            family="modernbert",
            size="base",
            recipe="standard",
            tokenizer="wordpiece, 32,000 pieces",
            why="Twelve layers of 768 need a GPU and gigabytes of text to be worth it. A mask rate of 30 % to the"
            " end (Wettig et al. 2022; ModernBERT) learns more from each token; the learning rate falls in the last"
            " fifth alone.",
            params={
                "tokenize.algorithm": "wordpiece",
                "tokenize.vocab_size": 32_000,
                "pretrain.model.family": "modernbert",
                "pretrain.model.size": "base",
                "pretrain.max_length": 256,
                "pretrain.batch_tokens": 131_072,
                "pretrain.micro_batch_tokens": 16_384,
                "pretrain.masking.mask_rate": 0.3,
                "pretrain.masking.final_mask_rate": None,
                "pretrain.optimizer.learning_rate": 8.0e-4,
                "pretrain.schedule.decay": "wsd",
                "pretrain.schedule.warmup_steps": 2000,
                "pretrain.steps": 100_000,
                "evaluate.max_length": 256,
            },
        ),
        "domain": Choice(
            family="that of the start",
            size="that of the start",
            recipe="domain-adaptation",
            tokenizer="existing: that of the start",
            why="With less than some 100 MB of your own text, a trained encoder that reads on in it is better than one"
            " from nothing (Gururangan et al. 2020). Fewer masks and a lower rate keep what it knows.",
            params={
                "tokenize.algorithm": "existing",
                "tokenize.existing": "answerdotai/ModernBERT-base",
                "pretrain.start": "answerdotai/ModernBERT-base",
                "pretrain.recipe": "domain-adaptation",
            },
        ),
    }
)
"""Keyed by what `clozeline plan --for` is given."""
