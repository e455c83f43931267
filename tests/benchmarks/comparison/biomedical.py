"""Biomedical text (articles of PLOS in JATS XML, NCBI disease), and encoders for it that the stages make."""

import gzip
import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any
from xml.etree import ElementTree

import torch
from transformers import AutoModel, AutoTokenizer

from clozeline.params.pretraining import laid_over
from clozeline.stages import pretrain
from comparison import ours
from comparison.labelled import Parts, Sizes, cut, labelled, tagged_items, write_lines, written
from comparison.sentences import weights
from comparison.stages import KEPT, paths_of
from comparison.texts import Corpus, Source, prepared
from finetune import in_parts, params_of, run_stage

_LOG = logging.getLogger(__name__)
ARTICLES, GENERAL = "plos", "wikinews-en"
# Elements whose text is not part of a sentence: citations, tables, figures, formulas.
_LEFT_OUT = {"xref", "table-wrap", "fig", "disp-formula", "inline-formula", "supplementary-material"}
# What is left where citations stood: empty brackets, and separators before punctuation.
_AFTER_CITATIONS = re.compile(r"\s*[\[(][\s,;–-]*[\])]|\s+[\s,;–-]*(?=[.,;:)])")
# Shorter paragraphs make no pair.
_LEAST_CHARACTERS = 200
# Share of words from general news in the text with replay, so that an encoder keeps what it knew.
REPLAY = 0.2


@dataclass(frozen=True)
class Article:
    name: str
    paragraphs: Sequence[str]  # abstract and body, without citations, tables and formulas


def articles() -> list[Article]:
    """Return the articles of the folder with known sets; none if this machine has none."""
    folder = labelled()
    files = sorted((folder / ARTICLES).glob("*.xml.gz")) if folder else []
    return [Article(file.name, list(_paragraphs(file))) for file in files]


def search_parts(sizes: Sizes, draw: int) -> Parts:
    """Return parts of paragraphs, whose rest is searched by the first sentence. An article is in one part."""
    items = [
        {"article": article.name, "text": paragraph}
        for article in articles()
        for paragraph in article.paragraphs
        if len(paragraph) >= _LEAST_CHARACTERS
    ]
    return written(f"search-{draw}", ARTICLES, cut(items, sizes, lambda it: it["article"], lambda it: it["text"], draw))


def biomedical_corpus(tokenize: Mapping[str, str | int | None], *, with_replay: bool) -> Corpus:
    """Return the `texts`, cleaned and tokenized by the stages on first use."""
    items = [{"text": text} for text in texts(with_replay=with_replay)]
    digest = hashlib.sha256(json.dumps(items).encode()).hexdigest()[:12]
    path = write_lines(KEPT / f"biomedical-{digest}.jsonl", items)
    section = {"source": {"kind": "files", "text_field": "text"}, "holdout_fraction": 0.0}
    return prepared(Source(path.stem, path, {"preprocess": section}), tokenize)


def texts(*, with_replay: bool) -> list[str]:
    """Return the text to train on: articles, sentences of NCBI disease's training part without their tags, and for
    replay general news.
    """
    folder = labelled()
    sentences = tagged_items(folder / "ncbi-disease" / "train.txt") if folder else []
    found = [paragraph for article in articles() for paragraph in article.paragraphs]
    found += [" ".join(sentence["tokens"]) for sentence in sentences]
    num_words = sum(map(_num_words, found))
    news = _news(folder, int(num_words * REPLAY / (1 - REPLAY))) if folder and with_replay else []
    return [*found, *news]


def _news(folder: Path, num_words: int) -> Iterator[str]:
    for file in sorted((folder / GENERAL).rglob("*.gz")):
        for line in gzip.decompress(file.read_bytes()).decode("utf-8").splitlines():
            if num_words <= 0:
                return
            if text := json.loads(line)["text"]:
                yield text
                num_words -= _num_words(text)


def _paragraphs(file: Path) -> Iterator[str]:
    root = ElementTree.fromstring(gzip.decompress(file.read_bytes()))
    for path in (".//article-meta/abstract//p", ".//body//p"):
        for element in root.iterfind(path):
            if text := _AFTER_CITATIONS.sub("", " ".join(_words(element).split())):
                yield text


def _words(element: ElementTree.Element) -> str:
    inner = (("" if child.tag in _LEFT_OUT else _words(child)) + (child.tail or "") for child in element)
    return (element.text or "") + "".join(inner)


def _num_words(text: str) -> int:
    return len(text.split())


MAX_LENGTH = 128
# Mean length of a first sentence and of the rest of a paragraph, cut at `MAX_LENGTH`.
_TOKENS_OF_A_PAIR = 150
# Share of the budget in which a causal detour predicts the next token.
_DETOUR = 0.3
_VOCAB_SIZE = 8192
# Continued training of a published encoder: masks and dropout rates as it was published.
_PUBLISHED = {
    "max_length": MAX_LENGTH,
    "batch_tokens": 1024,
    "masking": {"mask_rate": 0.15, "final_mask_rate": None},
    "model": {"dropout": 0.1, "attention_dropout": 0.1},
    "optimizer": {"learning_rate": 1.0e-4},
    "schedule": {"decay": "linear", "warmup_fraction": 0.1, "final_fraction": 0.0},
    "steps": None,
}
# Our default recipe, with rows as long as those of the published encoder.
_OWN = {"max_length": MAX_LENGTH, "model": {"size": "mini"}, "steps": None}


@dataclass(frozen=True)
class Budget:
    """What every recipe is given."""

    tokens: int  # tokens to train on
    seed: int
    num_threads: int
    pairs: Path  # folder with the parts of the pairs: those of `train` are trained on
    folder: Path  # folder for the encoders and what leads to them


@dataclass(frozen=True)
class Made:
    """An encoder, and what it cost."""

    folder: Path
    cpu_seconds: float
    # Whether it was trained from nothing, by our default recipe: it needs higher rates than a published one.
    is_own: bool = False
    frozen_layers: int | None = None


def published(_: Budget) -> Made:
    return Made(weights(), 0.0)


def adapted(budget: Budget, name: str, shares: Mapping[str, float]) -> Made:
    """Train on from the published encoder, with one objective after the other, general text among that of the field."""
    corpus = biomedical_corpus({"algorithm": "existing", "existing": str(weights())}, with_replay=True)
    made = published(budget)
    for objective, share in shares.items():
        start = {"start": str(made.folder), "objective": objective}
        section = {**_PUBLISHED, **start, "tokens": round(budget.tokens * share)}
        then = _pretrained(budget, budget.folder / name / objective, corpus, section)
        made = replace(then, cpu_seconds=made.cpu_seconds + then.cpu_seconds)
    return made


def pairs(budget: Budget) -> Made:
    """Contrastive training as the published encoder had: first sentence and rest of the paragraphs of the field."""
    return _on_pairs(budget, "pairs", published(budget))


def own(budget: Budget, *, times: float = 1.0) -> Made:
    """An encoder and a vocabulary from nothing, then pairs, for half of `times` the budget each."""
    corpus = biomedical_corpus({"vocab_size": _VOCAB_SIZE}, with_replay=False)
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
    folder = budget.folder / "static"
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(weights()).save_pretrained(folder)
    return Made(folder, 0.0, frozen_layers=1)


# `detour`: a causal step has every token as a target, a masked one 15 % of them.
RECIPES: Mapping[str, Callable[[Budget], Made]] = {
    "published": published,
    "masked_replay": partial(adapted, name="masked_replay", shares={"mlm": 1.0}),
    "detour": partial(adapted, name="detour", shares={"clm": _DETOUR, "mlm": 1 - _DETOUR}),
    "pairs": pairs,
    "own": own,
    "own_20": partial(own, times=20.0),
    "static": static,
}
# Recipes that continue from the published encoder.
ADAPTED = ("masked_replay", "detour", "pairs")


def _pretrained(budget: Budget, out: Path, corpus: Corpus, section: Mapping[str, Any]) -> Made:
    started = process_time()
    paths = paths_of("pretrain", out, out) | {"tokens": corpus.tokens, "tokenizer": corpus.tokenizer}
    params = ours.params_of({**section, "num_threads": budget.num_threads})
    pretrain.run(params, seed=budget.seed, **paths)
    figures = json.loads((out / "pretrain.json").read_text(encoding="utf-8"))
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
    knobs = {"docstring_field": "text", "max_length": MAX_LENGTH, "num_threads": num_threads}
    return {**in_parts("similarity"), **knobs}
