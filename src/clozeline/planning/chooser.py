"""Recommended encoder for each need, with the lines of params.yaml that configure it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class Choice:
    """Recommendation for one need, with its reason."""

    family: str
    size: str
    recipe: str
    tokenizer: str
    why: str
    params: Mapping[str, Any]
    """Dotted key of params.yaml → value."""


@dataclass(frozen=True)
class Combined:
    """Merged choices for several needs; the need that is named first wins."""

    params: Mapping[str, Any]
    conflicts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Need → keys that it would have set differently."""


_TOKENIZER = {f"tokenize.{key}" for key in ("algorithm", "existing", "vocab_size", "lowercase")} | {
    "pretrain.start",
    "pretrain.recipe",
    "pretrain.objective",
}
"""Keys of the tokenizer, of the starting model that it belongs to, and its objective; all come from the same need."""


def combine(needs: Sequence[str]) -> Combined:
    """Merge the choices for `needs`, keys of `CHOICES`."""
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
    """Return a nested mapping from dotted keys."""
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
            recipe="measured",
            tokenizer="unigram, 64,000 pieces, case kept",
            why="Text and vocabulary make a model multilingual, not the family (xlm-roberta is RoBERTa with 250,000"
            " pieces). Balance the languages of your text. With less than about 100 MB per language, continue from a"
            " trained encoder instead: set `start` and `tokenize.existing` to FacebookAI/xlm-roberta-base.",
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
            recipe="measured",
            tokenizer="unchanged",
            why="ModernBERT has rotary positions, local attention in two layers of three, and 8,192 tokens as published"
            " (Warner et al. 2024). It exports to ONNX; longformer does not. A larger vocabulary makes rows shorter.",
            params={
                "pretrain.model.family": "modernbert",
                "pretrain.model.size": "small",
                "pretrain.model.max_position_embeddings": 8192,
                "pretrain.max_length": 1024,
                "pretrain.batch_tokens": 8192,
                "evaluate.max_length": 1024,
            },
        ),
        "efficiency": Choice(
            family="modernbert",
            size="mini",
            recipe="measured",
            tokenizer="wordpiece, 8,192 pieces",
            why="The default, two layers of 96, fits the cache of one core. A vocabulary of 8,192 keeps the head cheap,"
            " both in training and in filling masks. If only the file has to be small: albert stores one layer for all"
            " (size small: 17 MiB instead of 68, but no faster). A distilled published model needs no pre-training:"
            " `clozeline import sentence-transformers/all-MiniLM-L6-v2`, distilbert/distilbert-base-uncased.",
            params={
                "tokenize.algorithm": "wordpiece",
                "tokenize.vocab_size": 8192,
                "pretrain.model.family": "modernbert",
                "pretrain.model.size": "mini",
                "pretrain.max_length": 64,
            },
        ),
        "accuracy": Choice(
            family="modernbert",
            size="base",
            recipe="measured",
            tokenizer="wordpiece, 32,000 pieces",
            why="Twelve layers of 768 need a GPU and gigabytes of text to be worth it. A constant mask rate of 30 %"
            " (Wettig et al. 2022; ModernBERT) learns more from each token. The learning rate falls only at the end.",
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
                "pretrain.schedule.warmup_fraction": 0.02,
                "pretrain.steps": 100_000,
                "evaluate.max_length": 256,
            },
        ),
        "domain": Choice(
            family="that of the start",
            size="that of the start",
            recipe="domain-adaptation",
            tokenizer="existing: that of the start",
            why="With less than about 100 MB of your own text, further training of an existing encoder beats training"
            " from scratch (Gururangan et al. 2020). Fewer masks and a lower learning rate preserve its knowledge."
            " If a published encoder has read your domain, name it as `start` and `existing`:"
            " allenai/scibert_scivocab_uncased (science), dmis-lab/biobert-base-cased-v1.2 or"
            " microsoft/BiomedNLP-BiomedBERT-base-uncased-abstract (biomedicine),"
            " nlpaueb/legal-bert-base-uncased (law), yiyanghkust/finbert-pretrain (finance),"
            " microsoft/codebert-base-mlm (code).",
            params={
                "pretrain.objective": "mlm",
                "tokenize.algorithm": "existing",
                "tokenize.existing": "answerdotai/ModernBERT-base",
                "pretrain.start": "answerdotai/ModernBERT-base",
                "pretrain.recipe": "domain-adaptation",
            },
        ),
        "generation": Choice(
            family="modernbert",
            size="small",
            recipe="measured",
            tokenizer="unchanged",
            why="A masked encoder does not write: use a causal model. One that is trained here continues texts like"
            " yours (`clozeline complete`), but follows no instructions; for free answers use a published LLM."
            " Tagging, question answering and filled masks need a masked encoder.",
            params={
                "pretrain.objective": "clm",
                "pretrain.model.family": "modernbert",
                "pretrain.model.size": "small",
                "pretrain.max_length": 128,
                "evaluate.max_length": 128,
            },
        ),
    }
)
"""Choices by need, the values of `clozeline plan --for`."""
