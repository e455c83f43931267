"""The worth of an own encoder on biomedical text (articles of PLOS in JATS XML, NCBI disease), and the encoders for it
that the stages make.
"""

import gzip
import hashlib
import json
import logging
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any
from xml.etree import ElementTree

import torch
from transformers import AutoModel, AutoTokenizer

from clozeline.params.pretraining import laid_over
from clozeline.stages import pretrain
from clozeline.system.files import code_of, fingerprint, replacing_file
from clozeline.tasks.similarity.matching import BelongingPairs
from clozeline.tasks.task import InputsOf
from clozeline.tasks.training import use_threads
from comparison import labelled, ours
from comparison.frame import Rounds, available_cores, options, paired_difference, report
from comparison.labelled import Parts, Sizes, known_data
from comparison.sentences import weights
from comparison.stages import KEPT, Corpus, Source, paths_of, prepared, write_clean
from finetune import in_parts, params_of, run_stage

_LOG = logging.getLogger(__name__)
# Elements whose text is not part of a sentence: citations, tables, figures, formulas.
_LEFT_OUT = {"xref", "table-wrap", "fig", "disp-formula", "inline-formula", "supplementary-material"}
# What is left where citations stood: empty brackets, and separators before punctuation.
_AFTER_CITATIONS = re.compile(r"\s*[\[(][\s,;–-]*[\])]|\s+[\s,;–-]*(?=[.,;:)])")
# Shorter paragraphs make no pair.
_LEAST_CHARACTERS = 200
# Share of words from general news in the text with replay, so that an encoder keeps what it knew.
REPLAY = 0.2


def articles() -> dict[str, list[str]]:
    """Return the paragraphs of each article, abstract and body, without citations, tables and formulas; no article if
    this machine has none.
    """
    folder = known_data()
    files = sorted((folder / "plos").glob("*.xml.gz")) if folder else []
    return {file.name: list(_paragraphs(file)) for file in files}


def _paragraphs(file: Path) -> Iterator[str]:
    root = ElementTree.fromstring(gzip.decompress(file.read_bytes()))
    for path in (".//article-meta/abstract//p", ".//body//p"):
        for element in root.iterfind(path):
            if text := _AFTER_CITATIONS.sub("", " ".join(_words(element).split())):
                yield text


def _words(element: ElementTree.Element) -> str:
    inner = (("" if child.tag in _LEFT_OUT else _words(child)) + (child.tail or "") for child in element)
    return (element.text or "") + "".join(inner)


def search_parts(sizes: Sizes, draw: int) -> Parts:
    """Return parts of paragraphs, whose rest is searched by the first sentence. An article is in one part."""
    items = [
        {"article": article, "text": paragraph}
        for article, paragraphs in articles().items()
        for paragraph in paragraphs
        if len(paragraph) >= _LEAST_CHARACTERS
    ]
    parts = labelled.cut(items, sizes, lambda it: it["article"], lambda it: it["text"], draw)
    return labelled.written(f"search-{draw}", "plos", parts)


def biomedical_corpus(tokenize: Mapping[str, str | int | None], *, with_replay: bool) -> Corpus:
    """Return the `texts`, cleaned and tokenized by the stages on first use."""
    items = [{"text": text} for text in texts(with_replay=with_replay)]
    digest = hashlib.sha256(json.dumps(items).encode()).hexdigest()[:12]
    path = labelled.write_lines(KEPT / f"biomedical-{digest}.jsonl", items)
    return prepared(Source(path.stem, path, others={"holdout_fraction": 0.0}), tokenize)


def texts(*, with_replay: bool) -> list[str]:
    """Return the text to train on: articles, sentences of NCBI disease's training part without their tags, and for
    replay general news.
    """
    folder = known_data()
    assert folder
    found = [paragraph for paragraphs in articles().values() for paragraph in paragraphs]
    found += [" ".join(item["tokens"]) for item in labelled.tagged_items(folder / "ncbi-disease" / "train.txt")]
    if with_replay:
        num_words = sum(len(text.split()) for text in found) * REPLAY / (1 - REPLAY)
        files = sorted((folder / "wikinews-en").rglob("*.gz"))
        for line in (line for file in files for line in gzip.decompress(file.read_bytes()).decode().splitlines()):
            if num_words <= 0:
                break
            if text := json.loads(line)["text"]:
                found.append(text)
                num_words -= len(text.split())
    return found


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


def adapted(budget: Budget, shares: Mapping[str, float]) -> Made:
    """Train on from the published encoder, with one objective after the other, general text among that of the field."""
    corpus = biomedical_corpus({"algorithm": "existing", "existing": str(weights())}, with_replay=True)
    made = published(budget)
    for objective, share in shares.items():
        start = {"start": str(made.folder), "objective": objective, "tokens": round(budget.tokens * share)}
        then = _pretrained(budget, budget.folder / objective, corpus, {**_PUBLISHED, **start})
        made = replace(then, cpu_seconds=made.cpu_seconds + then.cpu_seconds)
    return made


def pairs(budget: Budget) -> Made:
    """Contrastive training as the published encoder had: first sentence and rest of the paragraphs of the field."""
    return _on_pairs(budget, published(budget), 1.0)


def own(budget: Budget, *, times: float = 1.0) -> Made:
    """An encoder and a vocabulary from nothing, then pairs, for half of `times` the budget each."""
    corpus = biomedical_corpus({"vocab_size": _VOCAB_SIZE}, with_replay=False)
    section = {**_OWN, "tokens": round(budget.tokens * times * 0.5)}
    made = replace(_pretrained(budget, budget.folder / "own", corpus, section), is_own=True)
    return _on_pairs(budget, made, times * 0.5)


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
    model.save_pretrained(budget.folder)
    AutoTokenizer.from_pretrained(weights()).save_pretrained(budget.folder)
    return Made(budget.folder, 0.0, frozen_layers=1)


# `detour`: a causal step has every token as a target, a masked one 15 % of them.
RECIPES: Mapping[str, Callable[[Budget], Made]] = {
    "published": published,
    "masked_replay": partial(adapted, shares={"mlm": 1.0}),
    "detour": partial(adapted, shares={"clm": _DETOUR, "mlm": 1 - _DETOUR}),
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
    pretrain.run(ours.params_of({**section, "num_threads": budget.num_threads}), seed=budget.seed, **paths)
    figures = json.loads((out / "pretrain.json").read_text(encoding="utf-8"))
    _LOG.info("%s tokens, last loss %.3f", f"{figures['tokens']:,}", figures["last_training_loss_nats_per_token"])
    return Made(out / "encoder", process_time() - started)


def _on_pairs(budget: Budget, start: Made, share: float) -> Made:
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
    started, out = process_time(), budget.folder / "on-pairs"
    run_stage("pairs", params, budget.seed, start.folder, budget.pairs, out)
    return replace(start, folder=out / "model", cpu_seconds=start.cpu_seconds + process_time() - started)


def search_task(num_threads: int) -> dict[str, Any]:
    """Return the task of finding the rest of a paragraph by its first sentence, written as in params.yaml."""
    knobs = {"docstring_field": "text", "max_length": MAX_LENGTH, "num_threads": num_threads}
    return {**in_parts("similarity"), **knobs}


TASKS = ("tagging", "classification", "search", "search with BM25")
# Tasks whose mean figure is compared; the last one is shown beside them.
_COUNTED = TASKS[:3]
# Learning rate of a published encoder, and of our small one.
_RATES = {"tagging": (2.0e-4, 2.0e-3), "classification": (5.0e-5, 1.0e-3)}


@dataclass(frozen=True)
class Figures:
    """Figures of one encoder and one seed, by task."""

    test: Mapping[str, float]
    validation: Mapping[str, float]
    words: Mapping[str, float]  # the simple method of each task: each word's usual tag, TF-IDF, BM25
    cpu_seconds: float

    @property
    def mean(self) -> float:
        return fmean(self.test[task] for task in _COUNTED)


def main() -> None:
    """The worth of an own encoder on biomedical text: published, adapted, trained from nothing, static, words alone.

    Three tasks judge each encoder. Tagging: diseases in sentences of NCBI disease (F1 of entities). Classification:
    intents of citations in SciCite (accuracy): papers of medicine and computer science, of the labelled sets here the
    nearest to biomedicine. Search: the first sentence of a paragraph of PLOS should find the rest of it among the
    paragraphs of other articles (recall@10 by the vectors as they are, without further training). For the first two
    each encoder is fine-tuned on the same few labels.

    The published encoder is all-MiniLM-L6-v2. Every recipe gets the same number of tokens of the same text: articles of
    PLOS and the training sentences of NCBI disease, without labels; those with replay get 20 % of news in it. The text
    of all articles may be in it, the searched ones included, because text without labels can be had; pairs are made
    from other articles than the searched ones. `own` is 2 layers × 96 with a vocabulary of its own and takes far less
    time for a token; `own_20` gets 20 times as many. `cpu_seconds` are those of the training and its validation,
    without tokenization.

    Each seed draws its own labels and articles and trains anew. The ratio is the mean figure of the three tasks,
    adapted / published. Which recipe counts as adapted is decided by the validation parts, not by the test parts. The
    output is a readable table, then the line. The data lie beside the project, or in the folder that
    CLOZELINE_BENCHMARK_LABELLED names; without them there is nothing to measure. It takes hours. The figures of each
    seed and recipe are kept, so the same command goes on where it was stopped, as long as code and data are the same.
    """
    numbers = {"seeds": 3, "threads": available_cores(), "tokens": 200_000, "labelled": 600, "test": 600, "epochs": 4}
    parser = options(main.__doc__, list(RECIPES), **numbers)
    chosen = parser.parse_args()
    if "published" not in chosen.names or not {*ADAPTED}.intersection(chosen.names):
        parser.error(f"published and one of {', '.join(ADAPTED)} are needed for the ratio")
    found: dict[str, list[Figures]] = {name: [] for name in chosen.names}
    if articles():
        for seed in range(chosen.seeds):
            for name, figures in measured(chosen, seed):
                found[name].append(figures)
    else:
        _LOG.warning(labelled.NO_DATA)
    facts = {name: getattr(chosen, name) for name in ("tokens", "labelled", "test", "epochs")}
    sys.stdout.write(table(found))
    rounds, told = result(found)
    report("worth", rounds, chosen.threads, facts | told)


def measured(chosen: Namespace, seed: int) -> Iterator[tuple[str, Figures]]:
    """Yield the figures of each recipe, those of an earlier run if it measured them by the same code."""
    few: Sizes = {"test": chosen.test, "validation": chosen.labelled // 4, "train": chosen.labelled}
    parts = {
        "tagging": labelled.entity_parts(few, seed),
        "classification": labelled.few_label_parts("sci-cite", few, seed),
        "search": search_parts({"test": chosen.test, "validation": chosen.test // 2, "train": 10**6}, seed),
    }
    files = [
        *code_of(["."]),
        *sorted(Path(__file__).parent.rglob("*.py")),
        *(file for it in parts.values() for file in sorted(it.folder.iterdir())),
    ]
    with TemporaryDirectory() as name_of_folder:
        folder = Path(name_of_folder)
        for name in chosen.names:
            key = fingerprint({**vars(chosen), "seeds": None, "names": name, "seed": seed}, files)
            kept = KEPT / "worth" / f"{key}.json"
            if kept.exists():
                figures = Figures(**json.loads(kept.read_bytes()))
            else:
                budget = Budget(chosen.tokens, seed, chosen.threads, parts["search"].folder, folder / f"{name}-made")
                figures = judged(RECIPES[name](budget), parts, chosen, seed, folder / name)
                with replacing_file(kept) as beside:
                    beside.write_text(json.dumps(asdict(figures)), encoding="utf-8")
            _LOG.info("seed %d, %s: %s", seed, name, figures)
            yield name, figures


def judged(made: Made, parts: Mapping[str, Parts], chosen: Namespace, seed: int, out: Path) -> Figures:
    """Return the figures of an encoder; those of the search are by its vectors as they are."""
    use_threads(chosen.threads)
    clean = write_clean(out / "clean", {"train": ["Nothing of this task."]}) / "train.parquet"
    params = params_of(search_task(chosen.threads))
    search = BelongingPairs(InputsOf(params, seed, made.folder, parts["search"].folder, clean))
    found = search.test().figures
    test = {"search": found["recall"], "search with BM25": found["hybrid_recall"]}
    validation, words = {"search": search.validation_score()}, {"search": found["baseline_bm25_recall"]}
    for kind, rates in _RATES.items():
        task = {
            **in_parts(kind),
            "epochs": chosen.epochs,
            "optimizer": {"learning_rate": rates[made.is_own]},
            "frozen_layers": made.frozen_layers,
            "num_threads": chosen.threads,
        }
        figures = run_stage(kind, params_of(task), seed, made.folder, parts[kind].folder, out / kind)
        test[kind], validation[kind] = figures["headline"]["value"], figures["validation_score"]
        words[kind] = figures["headline"]["baseline_value"]
    return Figures(test, validation, words, made.cpu_seconds)


def table(found: Mapping[str, Sequence[Figures]]) -> str:
    """Return the means over the seeds, readable."""
    rows = {
        name: ([it.test for it in seeds], [it.cpu_seconds for it in seeds]) for name, seeds in found.items() if seeds
    }
    words = {"words alone": ([it.words for it in found["published"]], [0.0])} if rows else {}
    lines = [f"| encoder | {' | '.join(TASKS)} | CPU seconds |", "|---" * (len(TASKS) + 2) + "|"]
    for name, (figures, seconds) in {**words, **rows}.items():
        cells = [f"{fmean(it[task] for it in figures):.3f}" if task in figures[0] else "" for task in TASKS]
        lines.append(f"| {name} | {' | '.join(cells)} | {fmean(seconds):.0f} |")
    return "\n".join(lines) + "\n"


def result(found: Mapping[str, Sequence[Figures]]) -> tuple[Rounds, dict[str, Any]]:
    """Return the recipe of `ADAPTED` with the highest mean on the validation parts beside the published encoder, and
    the facts of each recipe.
    """
    theirs = found["published"]
    means = {name: fmean(fmean(it.validation.values()) for it in found[name]) for name in ADAPTED if found.get(name)}
    best = max(means, key=lambda name: means[name]) if means else None
    rounds = Rounds(tuple(it.mean for it in found[best]) if best else (), tuple(it.mean for it in theirs))
    return rounds, {"adapted": best, "recipes": {name: _facts(it, theirs) for name, it in found.items() if it}}


def _facts(ours: Sequence[Figures], theirs: Sequence[Figures]) -> dict[str, Any]:
    """Return the figures of each seed, and the difference to the published encoder with its standard error."""
    facts: dict[str, Any] = {"cpu_seconds": [round(it.cpu_seconds, 1) for it in ours]}
    for task in TASKS:
        mine, published = ([it.test[task] for it in side] for side in (ours, theirs))
        facts[task] = {"test": [round(value, 4) for value in mine], **paired_difference(mine, published)}
    return facts | {"words": {task: [round(it.words[task], 4) for it in ours] for task in _COUNTED}}
