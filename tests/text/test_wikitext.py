import pytest

from clozeline.corpus.cleaning.wikipedia import plain_text


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
        ("* one\n** two", "one\ntwo"),
        ("5 &nbsp;&lt; 6", "5 \xa0< 6"),
        ("Pi ({{IPA|pai}}) is <math>\\pi</math>.", "Pi is ."),
        ("__NOTOC__lost '' mark}} <ref>and tag", "lost  mark and tag"),
    ],
)
def test_markup_is_removed_and_words_are_kept(wikitext: str, expected: str) -> None:
    assert plain_text(wikitext).strip() == expected.strip()


def test_local_names_of_file_and_category_links_are_recognized() -> None:
    names = frozenset({"file", "image", "category", "datei", "kategorie"})
    assert plain_text("[[Datei:x.jpg|mini]]Text[[Kategorie:Dinge]]", names) == "Text"
