"""Plain text of MediaWiki markup: the running text that a reader of the page sees."""

import re
from collections.abc import Callable

import mwparserfromhell
from mwparserfromhell.nodes import ExternalLink, Heading, HTMLEntity, Node, Tag, Text, Wikilink
from mwparserfromhell.wikicode import Wikicode

CANONICAL_MEDIA_NAMES = frozenset({"file", "image", "category"})
"""Names valid in a wiki of any language, beside its own names."""
_NOT_RUNNING_TEXT = {
    *("table", "ref", "references", "gallery", "imagemap", "timeline", "graph", "score"),
    *("math", "chem", "code", "source", "syntaxhighlight", "templatestyles", "style", "section", "categorytree"),
}
_LANGUAGE_LINK = re.compile(r"[a-z]{2,3}(-[a-z]+)*:")
_MAGIC_WORD = re.compile(r"__[A-Z]{4,}__")
_TABLE_LINE = re.compile(r"^[ \t]*(?:\{\||\||!).*$", re.MULTILINE)
"""Lines of a table without an end, which the parser returns as text."""
_UNBALANCED = re.compile(r"\{\{|\}\}|\[\[|\]\]|''+|</?(?:ref|cite|blockquote|small|div|span|br|p)\b[^<>]*>")
"""Marks without their partner."""
_EMPTY_BRACKETS = re.compile(r" *\([,;:\s]*\)")
"""Remainder of a pronunciation template."""
_INDENTATION = re.compile(r"^[ \t]+", re.MULTILINE)


def plain_text(wikitext: str, media_names: frozenset[str] = CANONICAL_MEDIA_NAMES) -> str:
    """Return the text of a page without markup.

    Templates, tables, references, comments, formulas, and links to media, categories and other languages are dropped.

    Args:
        wikitext: the source of a page.
        media_names: lower-case names of the wiki's namespaces for files and categories.
    """
    text = _rendered(mwparserfromhell.parse(wikitext), media_names)
    for pattern in (_MAGIC_WORD, _TABLE_LINE, _UNBALANCED, _EMPTY_BRACKETS, _INDENTATION):
        text = pattern.sub("", text)
    return text


def _rendered(code: Wikicode | None, media_names: frozenset[str]) -> str:
    if code is None:
        return ""
    parts = []
    for node in code.nodes:
        render = _RENDERERS.get(type(node))
        if render:
            parts.append(render(node, media_names))
    return "".join(parts)


def _wikilink(node: Wikilink, media_names: frozenset[str]) -> str:
    target = str(node.title).strip()
    prefix = target.partition(":")[0].strip().lower()
    if prefix in media_names or (node.text is None and _LANGUAGE_LINK.match(target)):
        return ""
    return target.removeprefix(":") if node.text is None else _rendered(node.text, media_names)


def _tag(node: Tag, media_names: frozenset[str]) -> str:
    if str(node.tag).strip().lower() in _NOT_RUNNING_TEXT:
        return ""
    return _rendered(node.contents, media_names)


_RENDERERS: dict[type[Node], Callable[[Node, frozenset[str]], str]] = {
    Text: lambda node, media_names: str(node.value),
    HTMLEntity: lambda node, media_names: str(node.normalize()),
    Heading: lambda node, media_names: _rendered(node.title, media_names),
    ExternalLink: lambda node, media_names: _rendered(node.title, media_names),
    Wikilink: _wikilink,
    Tag: _tag,
}
"""Renderer of each kind of node. Other kinds (templates, comments, arguments) hold no text."""
