"""Biomedical text: articles of PLOS in JATS XML, as running text and as pairs for search; NCBI disease; SciCite."""

import gzip
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from comparison.labelled import Parts, Sizes, cut, labelled, tagged_items, write_lines, written
from comparison.stages import KEPT
from comparison.texts import Corpus, Source, prepared

ARTICLES, GENERAL = "plos", "wikinews-en"
_LEFT_OUT = {"xref", "table-wrap", "fig", "disp-formula", "inline-formula", "supplementary-material"}
"""Elements whose text is not part of a sentence: citations, tables, figures, formulas."""
_AFTER_CITATIONS = re.compile(r"\s*[\[(][\s,;–-]*[\])]|\s+[\s,;–-]*(?=[.,;:)])")
"""What is left where citations stood: empty brackets, and separators before punctuation."""
_LEAST_CHARACTERS = 200
"""Shorter paragraphs make no pair."""
REPLAY = 0.2
"""Share of words from general news in the text with replay, so that an encoder keeps what it knew."""


@dataclass(frozen=True)
class Article:
    name: str
    paragraphs: Sequence[str]
    """Abstract and body, without citations, tables and formulas."""


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


def corpus(tokenize: Mapping[str, str | int | None], *, with_replay: bool) -> Corpus:
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
    return found + news


def _news(folder: Path, num_words: int) -> list[str]:
    taken: list[str] = []
    for file in sorted((folder / GENERAL).rglob("*.gz")):
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for line in lines:
                if num_words <= 0:
                    return taken
                if text := json.loads(line)["text"]:
                    taken.append(text)
                    num_words -= _num_words(text)
    return taken


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
