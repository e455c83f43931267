import pytest

from clozeline.pretraining.card import stated_facts


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        (b"no front matter", {}),
        (b"---\nlicense: [\n---\n# broken", {}),
        (b"---\n- a list\n---\n# no mapping", {}),
        (b"---\n---\n", {}),
        (b"\0\xef\xbf\xbe", {}),
        (b"\xef\xbb\xbf---\r\nlicense: mit\r\n---\r\n# title\r\n", {"license": "mit"}),  # as Windows writes it
    ],
)
def test_a_card_states_its_facts_and_an_unreadable_one_none(content: bytes, facts: dict[str, str], tmp_path) -> None:
    (tmp_path / "README.md").write_bytes(content)
    assert stated_facts(tmp_path / "README.md") == facts
