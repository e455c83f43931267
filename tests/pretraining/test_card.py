from pathlib import Path

import pytest

from clozeline.pretraining.card import stated_facts


@pytest.mark.parametrize(
    "text",
    ["no front matter", "---\nlicense: [\n---\n# broken", "---\n- a list\n---\n# no mapping", "---\n---\n", "\0\ufffe"],
)
def test_an_unreadable_card_gives_no_facts(text: str, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(text, encoding="utf-8")
    assert stated_facts(tmp_path / "README.md") == {}


def test_a_card_is_read_with_a_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_bytes(b"\xef\xbb\xbf---\r\nlicense: mit\r\n---\r\n# title\r\n")
    assert stated_facts(tmp_path / "README.md") == {"license": "mit"}
