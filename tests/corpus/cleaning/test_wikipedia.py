"""A dump gives the running text of its articles, without markup, and names what is no dump."""

import bz2
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from clozeline.corpus.cleaning.documents import Document, DropReason, RawFile
from clozeline.corpus.cleaning.wikipedia import WikiPage, plain_text, wiki_pages
from clozeline.system.errors import DataError

HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/" version="0.10" xml:lang="de">
  <siteinfo><namespaces>
    <namespace key="0" /><namespace key="6">Datei</namespace><namespace key="14">Kategorie</namespace>
  </namespaces></siteinfo>
"""
TAIL = "</mediawiki>\n"


def page(title: str, wikitext: str, namespace: int = 0, extra: str = "") -> str:
    return (
        f"<page><title>{title}</title><ns>{namespace}</ns><id>1</id>{extra}"
        f"<revision><id>2</id><text xml:space='preserve'>{wikitext}</text></revision></page>\n"
    )


DUMP = (
    HEAD
    + page("Haus", "Ein '''Haus''' &amp;amp; Hof.[[Datei:h.jpg|mini|Bild]]")
    + page("Heim", "#WEITERLEITUNG [[Haus]]", extra='<redirect title="Haus" />')
    + page("Home", "#REDIRECT [[Haus]]")
    + page("Vorlage:X", "text", namespace=10)
    + page("Leer", "")
    + TAIL
)


def pages_of(path: Path) -> Iterator[WikiPage]:
    return wiki_pages(RawFile(path, path.name, path.name))


def read(path: Path) -> list[Document]:
    return [document for unit in pages_of(path) for document in unit.documents()]


@pytest.mark.parametrize("compress", [bytes, bz2.compress])
def test_articles_become_text_and_other_pages_are_skipped_with_a_reason(tmp_path, compress) -> None:
    path = tmp_path / "dump.xml.bz2"
    path.write_bytes(compress(DUMP.encode()))
    assert read(path) == [
        Document("Ein Haus & Hof.", path.name, "Haus"),
        Document("", path.name, "Heim", DropReason.REDIRECT),
        Document("", path.name, "Home", DropReason.REDIRECT),
        Document("", path.name, "Vorlage:X", DropReason.NOT_AN_ARTICLE),
        Document("", path.name, "Leer"),
    ]


@pytest.mark.parametrize(
    "content", [DUMP[: len(DUMP) // 2].encode(), bz2.compress(DUMP.encode())[:-10], b"no XML", b"<html><body/></html>"]
)
def test_an_incomplete_dump_is_refused_by_name(tmp_path, content: bytes) -> None:
    path = tmp_path / "dump.xml"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"dump\.xml"):
        read(path)


def test_read_pages_are_released_from_memory(tmp_path) -> None:
    path = tmp_path / "dump.xml"
    path.write_text(HEAD + page("Page", "word " * 20_000) * 200 + TAIL)
    units = pages_of(path)
    tracemalloc.start()
    assert sum(1 for _ in units) == 200
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert path.stat().st_size > 20_000_000
    assert peak_bytes < 3_000_000


@pytest.mark.parametrize(
    ("wikitext", "expected"),
    [
        ("'''Bold''' and ''italic''", "Bold and italic"),
        ("a {{template|with {{one}} inside}}b", "a b"),
        ("[[Paris]], [[France|the country]]", "Paris, the country"),
        ("[[File:x.jpg|thumb|A [[linked]] caption]]Text", "Text"),
        ("[[image:x.jpg]][[Category:Things]]Text", "Text"),
        ("Text[[fr:Texte]] [[:Category:Things]]", "Text Category:Things"),
        ("[https://example.org the site] [https://example.org]", "the site "),
        ("Fact.<ref>Book, p. 3</ref> More.<ref name='x' />", "Fact. More."),
        ("x <!-- hidden --> y", "x  y"),
        ("{|\n! head\n|-\n| cell\n|}\nAfter", "\nAfter"),
        ("| an unfinished\n|-\n! table\nAfter", "\n\n\nAfter"),
        ("== Heading ==\nbody", " Heading \nbody"),
        ("5 &nbsp;&lt; 6", "5 \xa0< 6"),
        ("Pi ({{IPA|pai}}) is <math>\\pi</math>.", "Pi is ."),
        ("__NOTOC__lost '' mark}} <ref>and tag", "lost  mark and tag"),
    ],
)
def test_markup_is_removed_and_words_are_kept(wikitext: str, expected: str) -> None:
    assert plain_text(wikitext).strip() == expected.strip()
