"""Masked words are marked at their positions in the text."""

import re

from clozeline.reporting.page import build
from tests.reporting.conftest import EXAMPLES, Ran, write_json


def text(html: str) -> str:
    (found,) = re.findall(r'<p class="cloze">(.*?)</p>', html)
    return found


def test_each_hidden_word_is_shown_in_its_place_and_marked_by_its_rank(ran: Ran) -> None:
    html = build(ran.run).html
    marked = re.sub(r"<sup>\d+</sup>", "", text(html))
    assert marked.startswith('the <mark class="hit">cat</mark> sat <mark class="miss">on</mark> &lt;script')
    assert "2 words: 1 right at the first guess, 1 among the first five" in html


def test_examples_of_a_causal_model_are_shown_without_masks(ran: Ran) -> None:
    causal = [{**EXAMPLES[0], "masked": EXAMPLES[0]["original"]}]
    write_json(ran.root / "reports/examples/examples.json", causal)
    assert text(build(ran.run).html).startswith("the cat sat on &lt;script")
