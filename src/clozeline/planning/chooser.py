"""Recommended encoder for each need, with the lines of params.yaml that configure it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

_TOKENIZER = {f"tokenize.{key}" for key in ("algorithm", "existing", "vocab_size", "lowercase")} | {
    "pretrain.start",
    "pretrain.recipe",
    "pretrain.objective",
}
"""Keys of the tokenizer, of the starting model that it belongs to, and its objective; all come from the same need."""
_OF_FRESH_MODEL = tuple(
    f"pretrain.{name}" for name in ("model.family", "model.size", "optimizer.", "masking.", "schedule.", "steps")
)
"""Keys that suit a model trained from scratch; a starting model has its own shape, and the rates of its recipe."""
_AS_IT_IS = (
    " `clozeline import` takes it as it is, without training. If its weights are published as a pickle, the refusal"
    " has the command that converts them."
)


@dataclass(frozen=True)
class Recommendation:
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


def combine(needs: Sequence[str]) -> Combined:
    """Merge the choices for `needs`, keys of `CHOICES`."""
    params: dict[str, Any] = {}
    conflicts = {}
    for need in dict.fromkeys(needs):
        wanted = CHOICES[need].params
        lost = {key for key, value in wanted.items() if params.get(key, value) != value}
        if lost & _TOKENIZER:
            lost |= wanted.keys() & _TOKENIZER
        if "pretrain.start" in params:
            lost |= {key for key in wanted if key.startswith(_OF_FRESH_MODEL)}
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


def _published(name: str, tokenizer: str, why: str) -> Recommendation:
    """Return the choice of an encoder that others pre-trained on text of a domain, to be trained further."""
    return Recommendation(
        family="that of the start",
        size="that of the start",
        recipe="domain-adaptation",
        tokenizer=f"existing: {tokenizer}",
        why=why,
        params={
            "pretrain.objective": "mlm",
            "tokenize.algorithm": "existing",
            "tokenize.existing": name,
            "pretrain.start": name,
            "pretrain.recipe": "domain-adaptation",
        },
    )


CHOICES: Mapping[str, Recommendation] = MappingProxyType(
    {
        "multilingual": Recommendation(
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
        "long": Recommendation(
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
        "efficiency": Recommendation(
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
        "accuracy": Recommendation(
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
        "domain": _published(
            "answerdotai/ModernBERT-base",
            "that of the start",
            "With less than about 100 MB of your own text, further training of an existing encoder beats training"
            " from scratch (Gururangan et al. 2020). Fewer masks and a lower learning rate preserve its knowledge.",
        ),
        "science": _published(
            "allenai/scibert_scivocab_uncased",
            "wordpiece, 31,090 pieces, lowercased",
            "SciBERT (Beltagy et al. 2019) was pre-trained on 1.14 million papers, most of them biomedical, with a"
            " vocabulary of its own." + _AS_IT_IS,
        ),
        "biomedical": _published(
            "microsoft/BiomedNLP-BiomedBERT-base-uncased-abstract",
            "wordpiece, 30,522 pieces, lowercased",
            "PubMedBERT (Gu et al. 2021) was pre-trained from scratch on PubMed abstracts. Its vocabulary keeps medical"
            " terms whole, and it beats encoders that were adapted from general text." + _AS_IT_IS,
        ),
        "genes": _published(
            "dmis-lab/biobert-base-cased-v1.2",
            "wordpiece, 28,996 pieces, case kept",
            "BioBERT (Lee et al. 2020) is BERT trained further on PubMed. It keeps case, which tells names of genes"
            " and proteins apart." + _AS_IT_IS,
        ),
        "legal": _published(
            "nlpaueb/legal-bert-base-uncased",
            "wordpiece, 30,522 pieces, lowercased",
            "LEGAL-BERT (Chalkidis et al. 2020) was pre-trained from scratch on 12 GB of English laws, court cases and"
            " contracts." + _AS_IT_IS,
        ),
        "finance": _published(
            "yiyanghkust/finbert-pretrain",
            "wordpiece, 30,873 pieces, lowercased",
            "FinBERT (Yang et al. 2020) was pre-trained on reports, calls and analyses of companies. For the sentiment"
            " of financial news alone: `clozeline import ProsusAI/finbert` (Araci 2019).",
        ),
        "code": _published(
            "microsoft/codebert-base-mlm",
            "byte-level BPE, 50,265 pieces",
            "CodeBERT (Feng et al. 2020) is RoBERTa trained on functions in six languages and their documentation."
            + _AS_IT_IS,
        ),
        "generation": Recommendation(
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
