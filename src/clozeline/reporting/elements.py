"""HTML and SVG as nested calls. Whatever is no `Markup` yet is escaped: texts of users hold HTML, and so do labels."""

from collections.abc import Iterable, Sequence

from markupsafe import Markup, escape


def element(name: str, *children: object, **attributes: object) -> Markup:
    """`<name …>children</name>`; of an attribute's name a last `_` goes, and others become `-`; None leaves it out."""
    told = joined(
        Markup(' {}="{}"').format(Markup(key.rstrip("_").replace("_", "-")), value)
        for key, value in attributes.items()
        if value is not None
    )
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(name), told, joined(children))


def joined(children: Iterable[object]) -> Markup:
    """One after the other; None is nothing."""
    return Markup("").join(escape(child) for child in children if child is not None)


def table(
    caption: object, columns: Sequence[str], rows: Iterable[Sequence[object]], *, kind: str | None = None
) -> Markup:
    """A column whose name begins with `>` holds numbers; the first cell of a row is its heading.

    Wider than the page, it scrolls in a box of its own: the page never does.
    """
    numeric = [column.startswith(">") for column in columns]
    head = element(
        "tr",
        *(
            element("th", column.removeprefix(">"), scope="col", class_="number" if is_number else None)
            for column, is_number in zip(columns, numeric, strict=True)
        ),
    )
    body = [element("tr", *(_cell(place, cell, numeric[place]) for place, cell in enumerate(row))) for row in rows]
    made = element("table", element("caption", caption), element("thead", head), element("tbody", *body), class_=kind)
    return scrolling(made, label=Markup(caption).striptags() if isinstance(caption, Markup) else str(caption))


def scrolling(child: Markup, *, label: str) -> Markup:
    """A box that can be scrolled by keyboard, too."""
    return element("div", child, class_="scroll", role="region", aria_label=label, tabindex=0)


def _cell(place: int, cell: object, is_number: bool) -> Markup:
    kind = "number" if is_number else None
    if place == 0:
        return element("th", cell, scope="row", class_=kind)
    return element("td", cell, class_=kind)


def described(pairs: Iterable[tuple[object, object]]) -> Markup:
    """Names and what they stand for."""
    return element(
        "dl", *(element("div", element("dt", name), element("dd", value)) for name, value in pairs), class_="facts"
    )


def folded(summary: object, *children: object, is_open: bool = False) -> Markup:
    """Shown when asked for; on paper always."""
    return element("details", element("summary", summary), *children, open="" if is_open else None)


def code(text: object) -> Markup:
    return element("code", text)
